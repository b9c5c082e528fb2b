"""Tasks of huey."""

from __future__ import annotations

from typing import Any

import bodies
from huey import RedisHuey

from leasehold import Client
from leasehold.integrations.huey import locked_task

huey = RedisHuey("tests", url=bodies.BROKER)
locks = Client.from_url(bodies.LOCKS, response_timeout=1)


@huey.task(retries=2000, retry_delay=1)
@locked_task(locks, bodies.TEMPLATE, delay=1, **bodies.OPTIONS)
def ship(order: str, seconds: float = 0, *, hold: Any) -> None:
    bodies.ship(order, seconds, hold)


@huey.task()
@locked_task(locks, bodies.TEMPLATE, on_busy="skip", **bodies.OPTIONS)
def skip(order: str, seconds: float = 0, *, hold: Any) -> None:
    bodies.ship(order, seconds, hold)


def send(messages: list[tuple[str, str, float]]) -> None:
    for task, order, seconds in messages:
        {"ship": ship, "skip": skip}[task](order, seconds=seconds)

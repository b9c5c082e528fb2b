"""Jobs of RQ."""

from __future__ import annotations

from typing import Any

import bodies
from redis import Redis
from rq import Queue, Retry

from leasehold import Client
from leasehold.integrations.rq import locked_job

locks = Client.from_url(bodies.LOCKS, response_timeout=1)


@locked_job(locks, bodies.TEMPLATE, delay=1, **bodies.OPTIONS)
def ship(order: str, seconds: float = 0, *, hold: Any) -> None:
    bodies.ship(order, seconds, hold)


@locked_job(locks, bodies.TEMPLATE, on_busy="skip", **bodies.OPTIONS)
def skip(order: str, seconds: float = 0, *, hold: Any) -> None:
    bodies.ship(order, seconds, hold)


def send(messages: list[tuple[str, str, float]]) -> None:
    with Redis.from_url(bodies.BROKER) as connection:
        queue = Queue(connection=connection)
        for task, order, seconds in messages:
            queue.enqueue(f"of_rq.{task}", order, seconds=seconds, retry=Retry(max=200))

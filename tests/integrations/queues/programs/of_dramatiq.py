"""Actors of dramatiq."""

from __future__ import annotations

from typing import Any

import bodies
import dramatiq
from dramatiq.brokers.redis import RedisBroker

from leasehold import Client
from leasehold.integrations.dramatiq import LockMiddleware

broker = RedisBroker(url=bodies.BROKER)
broker.add_middleware(LockMiddleware(Client.from_url(bodies.LOCKS, response_timeout=1), delay=0.2))
dramatiq.set_broker(broker)
OPTIONS: dict[str, Any] = {"lock": bodies.TEMPLATE, "min_backoff": 200, "max_backoff": 500, **bodies.OPTIONS}


@dramatiq.actor(max_retries=200, **OPTIONS)
def ship(order: str, seconds: float = 0, *, hold: Any) -> None:
    bodies.ship(order, seconds, hold)


@dramatiq.actor(on_busy="skip", **OPTIONS)
def skip(order: str, seconds: float = 0, *, hold: Any) -> None:
    bodies.ship(order, seconds, hold)


def send(messages: list[tuple[str, str, float]]) -> None:
    for task, order, seconds in messages:
        {"ship": ship, "skip": skip}[task].send(order, seconds=seconds)

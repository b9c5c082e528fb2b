"""What the tasks of all queues do: they write down when they begin and end, with the token of their lock."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from support.workers import Journal, note

LOCKS = os.environ["LOCKS"]
BROKER = os.environ["BROKER"]
LEASE = 1.5
TEMPLATE = "order:{order}"
OPTIONS: dict[str, Any] = {"lease": LEASE, "hold": "hold"}


def first(order: str) -> bool:
    """Whether no task has begun for this order."""
    from pathlib import Path

    return not Journal(Path(os.environ["JOURNAL"])).entries("begin", order=order)


def waits(order: str) -> bool:
    """Whether the order ``busy`` has to wait until ``free`` has ended."""
    from pathlib import Path

    return order == "busy" and not Journal(Path(os.environ["JOURNAL"])).entries("end", order="free")


def ship(order: str, seconds: float, hold: Any) -> str:
    """Work under the lock; the first for an order that begins with ``lose`` waits until it has lost its lease."""
    loses = order.startswith("lose") and first(order)
    note("begin", order=order, token=hold.token)
    until = time.monotonic() + 20
    while ((loses and not hold.lost) or waits(order)) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(seconds)
    note("lost" if loses else "end", order=order, token=hold.token)
    return order


async def aship(order: str, seconds: float, hold: Any) -> str:
    """As `ship`; the block is cancelled when the lease is lost."""
    loses = order.startswith("lose") and first(order)
    note("begin", order=order, token=hold.token)
    try:
        until = time.monotonic() + 20
        while waits(order) and time.monotonic() < until:  # noqa: ASYNC110  # another process ends it
            await asyncio.sleep(0.02)
        await asyncio.sleep(20 if loses else seconds)
    except asyncio.CancelledError:
        note("lost", order=order, token=hold.token)
        raise
    note("end", order=order, token=hold.token)
    return order

"""Waits for a cell to change: by the store's notifications where it has them, else by polling at growing intervals."""

from __future__ import annotations

from typing import cast

from leasehold._engine.engine import Engine
from leasehold._engine.retry import asked
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Watching

FIRST_POLL = 0.005  # seconds before the first poll, where the store sends no notifications; later pauses are longer
LONGEST_POLL = 0.25  # seconds between two polls, at most: the longest delay of a wake-up without notifications
LOST_MESSAGE = 1.0  # seconds after which a waiter reads the cell without a notification: the cost of a lost one


class Pace:
    """How long to sleep between two polls."""

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = FIRST_POLL

    def next(self, jitter: float) -> float:
        """Return the next pause; it grows from poll to poll, and jitter spreads the waiters."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LONGEST_POLL)
        return pause * (0.75 + jitter / 4)


async def changed(engine: Engine, cell: str, version: int, *, timeout: float, pace: Pace) -> None:
    """Sleep until ``cell`` may have another version than ``version``, at most ``timeout`` seconds."""
    if engine.store.capabilities.watches:
        try:
            store = cast(Watching, engine.store)
            return await asked(store.wait_for_cell(cell, version, timeout=min(timeout, LOST_MESSAGE)))
        except StoreUnavailable as error:  # the next read detects whether the store is down
            if error.lasting:
                raise
    await engine.runtime.sleep(min(timeout, pace.next(engine.runtime.jitter())))

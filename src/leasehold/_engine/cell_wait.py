"""Waiting for a cell to change: by the store's own messages where it has them, else by looking at growing intervals."""

from __future__ import annotations

from typing import cast

from leasehold._engine.engine import Engine
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Watching

FIRST_LOOK = 0.005
"""Seconds between two looks at a cell at first, where the store sends no messages; each further pause is longer."""

LONGEST_LOOK = 0.25
"""Seconds between two looks at most: how late one is woken by a store that sends no messages."""

LOST_MESSAGE = 1.0
"""Seconds after which one looks again even if no message came: what a lost message may cost."""


class Pace:
    """How long to sleep between two looks."""

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = FIRST_LOOK

    def next(self, jitter: float) -> float:
        """Return the next pause; it grows from look to look, and those of many who wait do not fall together."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LONGEST_LOOK)
        return pause * (0.75 + jitter / 4)


async def changed(engine: Engine, cell: str, version: int, *, timeout: float, pace: Pace) -> None:
    """Sleep until ``cell`` may have another version than ``version``, at most ``timeout`` seconds; then look again."""
    if engine.store.capabilities.watches:
        try:
            store = cast(Watching, engine.store)
            return await store.wait_for_cell(cell, version, timeout=min(timeout, LOST_MESSAGE))
        except StoreUnavailable as error:  # the look that follows finds out whether the store is down
            if error.lasting:
                raise
    await engine.runtime.sleep(min(timeout, pace.next(engine.runtime.jitter())))

"""Locks by key for the threads or tasks of one client, made of the runtime's signals.

A caller may be cancelled just after its turn has come, or a signal handler may raise in it at any line. It still passes
the turn on, so no turn is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable


class KeyedLock:
    """A first-in, first-out lock for each key, with a deadline. Works in every flavor."""

    def __init__(self, runtime: Runtime, too_slow: str) -> None:
        """Make one without callers; ``too_slow`` is the message of the error when a turn does not come in time."""
        self._runtime = runtime
        self._too_slow = too_slow
        self._mutex = runtime.mutex()
        self._queues: dict[str, deque[Signal]] = {}

    @asynccontextmanager
    async def turn(self, key: str, until: float) -> AsyncGenerator[None, None]:
        """Wait for the turn at ``key``, at most until the boot-time clock shows ``until``; pass it on at the end.

        Raises:
            StoreUnavailable: the turn did not come in time; nothing was sent.
        """
        mine = self._runtime.signal()
        try:
            if not self._join(key, mine) and not await mine.wait(max(0.0, until - self._runtime.now())):
                raise StoreUnavailable(self._too_slow)
            yield
        finally:
            try:
                self._leave(key, mine)
            finally:
                self._leave(key, mine)  # again: a signal handler may have raised in the first

    def _join(self, key: str, mine: Signal) -> bool:
        """Join the queue; return whether it is the first."""
        with self._mutex:
            queue = self._queues.setdefault(key, deque())
            queue.append(mine)
            return queue[0] is mine

    def _leave(self, key: str, mine: Signal) -> None:
        """Leave the queue, if it is there; its turn may have come just before a timeout or a cancellation."""
        with self._mutex:
            queue = self._queues.get(key, deque())
            if mine in queue:
                queue.remove(mine)
            if queue:
                queue[0].set()
            else:
                self._queues.pop(key, None)

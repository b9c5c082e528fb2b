"""Locks by key for the threads or tasks of one client, made of the runtime's signals.

A caller may be cancelled just after it got the lock, or a signal handler may raise in it at any line. It still passes
the lock on to the next caller.
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
        """Make one without callers; ``too_slow`` is the message of the error of a caller that waits too long."""
        self._runtime = runtime
        self._too_slow = too_slow
        self._mutex = runtime.mutex()
        self._queues: dict[str, deque[Signal]] = {}

    @asynccontextmanager
    async def hold(self, key: str, until: float) -> AsyncGenerator[None, None]:
        """Hold the lock of ``key`` for a block; wait for it at most until the boot-time clock shows ``until``.

        Raises:
            StoreUnavailable: the lock was not free in time; nothing was sent.
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
        """Leave the queue, if it is there; it may have got the lock just before a timeout or a cancellation."""
        with self._mutex:
            queue = self._queues.get(key, deque())
            if mine in queue:
                queue.remove(mine)
            if queue:
                queue[0].set()
            else:
                self._queues.pop(key, None)

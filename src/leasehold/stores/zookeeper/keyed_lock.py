"""One after the other: writers of one cell in one client, who would only make each other try again."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable


class KeyedLock:
    """A queue for each key; whoever is first has its turn."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._queues: dict[str, deque[Signal]] = {}

    @asynccontextmanager
    async def turn(self, key: str, until: float) -> AsyncGenerator[None, None]:
        """Wait for the turn at ``key``, and end it.

        Raises:
            StoreUnavailable: it did not come in time; nothing was sent.

        """
        mine = self._runtime.signal()
        with self._mutex:
            queue = self._queues.setdefault(key, deque())
            queue.append(mine)
            first = queue[0] is mine
        try:
            if not first and not await mine.wait(max(0.0, until - self._runtime.now())):
                raise StoreUnavailable("ZooKeeper: too many writers of one cell in this client")
            yield
        finally:
            with self._mutex:  # whoever gives up while it waits may have been called already
                was_first = queue[0] is mine
                queue.remove(mine)
                if not queue:
                    self._queues.pop(key, None)
                elif was_first:
                    queue[0].set()

"""The connections of one client: a bounded number, each used by one transaction at a time. For both flavors."""

from __future__ import annotations

from collections import deque

from leasehold._runtimes.base import Runtime, Signal
from leasehold.stores.postgres.connection.exchange import Connection


class Waiter:
    """Somebody who waits for a place."""

    __slots__ = ("connection", "given", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.given = False
        self.connection: Connection | None = None


class Pool:
    """Hands out places: an idle connection, or the right to make one. First come, first served."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._free = size
        self._idle: list[Connection] = []
        self._queue: deque[Waiter] = deque()

    @property
    def busy(self) -> bool:
        """Whether all places are taken."""
        return not self._free

    async def take(self, until: float) -> Connection | None:
        """Return an idle connection, or None for the right to make one.

        Raises:
            TimeoutError: all places were taken until then.

        """
        with self._mutex:
            if self._free:
                self._free -= 1
                return self._idle.pop() if self._idle else None
            waiter = Waiter(self._runtime.signal())
            self._queue.append(waiter)
        try:
            await waiter.signal.wait(max(until - self._runtime.now(), 0.0))
        finally:
            with self._mutex:
                if not waiter.given:
                    self._queue.remove(waiter)
        if not waiter.given:
            raise TimeoutError("all connections of this client are in use")
        return waiter.connection

    def give(self, connection: Connection | None) -> None:
        """Give a place back, with the connection if it can be used again."""
        with self._mutex:
            if self._queue:
                waiter = self._queue.popleft()
                waiter.connection, waiter.given = connection, True
                waiter.signal.set()
                return
            self._free += 1
            if connection is not None:
                self._idle.append(connection)

    def empty(self) -> list[Connection]:
        """Take out all idle connections."""
        with self._mutex:
            idle, self._idle = self._idle, []
        return idle

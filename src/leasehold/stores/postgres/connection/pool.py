"""The connections of one client: a bounded number, each used by one transaction at a time. For both flavors."""

from __future__ import annotations

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.semaphore import Semaphore
from leasehold.stores.postgres.connection.exchange import Connection


class Pool:
    """Hands out permits to use a connection, first come, first served, with an idle connection if there is one."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self._permits = Semaphore(runtime, size)
        self._mutex = runtime.mutex()
        self._idle: list[Connection] = []

    async def take(self, until: float) -> Connection | None:
        """Return an idle connection, or None for the right to open one.

        Raises:
            TimeoutError: all connections were in use until then.

        """
        if not await self._permits.take(until):
            raise TimeoutError("all connections of this client are in use")
        with self._mutex:
            return self._idle.pop() if self._idle else None

    def give(self, connection: Connection | None) -> None:
        """Return a permit, with the connection if it can be used again."""
        if connection is not None:
            with self._mutex:
                self._idle.append(connection)
        self._permits.give()

    def empty(self) -> list[Connection]:
        """Remove and return all idle connections."""
        with self._mutex:
            idle, self._idle = self._idle, []
        return idle

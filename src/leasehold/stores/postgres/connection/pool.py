"""The connections of one client to PostgreSQL that are in no transaction."""

from __future__ import annotations

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.transport import Semaphore
from leasehold.stores.postgres.connection.exchange import Connection


class Pool:
    """Permits to use a connection, first come, first served, and idle connections."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.permits = Semaphore(runtime, size)
        self._mutex = runtime.mutex()
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection | None:
        """Return an idle connection, if there is one."""
        with self._mutex:
            return self._idle.pop() if self._idle else None

    def give(self, connection: Connection) -> bool:
        """Take back a connection that can be used again; return whether it was kept: not after `close`."""
        with self._mutex:
            if not self._closed:
                self._idle.append(connection)
            return not self._closed

    def forget_idle(self) -> list[Connection]:
        """Remove and return all idle connections."""
        with self._mutex:
            idle, self._idle = self._idle, []
        return idle

    def close(self) -> list[Connection]:
        """Remove and return all idle connections, and keep none from now on."""
        with self._mutex:
            self._closed = True
        return self.forget_idle()

"""The connections of one client: opened when needed, used by one task or thread at a time, kept while idle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.semaphore import Semaphore
from leasehold.stores.mysql.connection.base import Connection, no_answer

L = TypeVar("L", bound=Connection)

AT_ONCE = 16
"""Maximum number of connections in use, besides those of urgent calls; later calls wait."""

MAX_IDLE = 60.0
"""Seconds for which an idle connection is kept open."""

Connect = Callable[[float], Awaitable[L]]
"""Opens a connection, within so many seconds."""


class Pool(Generic[L]):
    """Used by many tasks or threads at once."""

    def __init__(self, runtime: Runtime, connect: Connect[L], where: str) -> None:
        self._runtime = runtime
        self._connect = connect
        self._where = where
        self._inherited: list[L] = []
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._idle: list[tuple[L, float]] = []  # with the time of their last use, the latest at the end
        self._used: set[L] = set()
        self._permits = Semaphore(self._runtime, AT_ONCE)
        self._closed = False

    async def take(self, until: float, *, urgent: bool = False) -> tuple[L, bool]:
        """Return a connection for one caller, and whether it is new. `give` or `drop` takes it back.

        Raises:
            StoreUnavailable: none was free in time; nothing was sent.

        """
        if not urgent and not await self._permits.take(until):
            raise no_answer(self._where, f"all {AT_ONCE} connections of this client are busy", unknown=False)
        try:
            return await self._usable_connection(until)
        except BaseException:
            if not urgent:
                self._permits.give()
            raise

    async def give(self, connection: L, *, urgent: bool = False) -> None:
        """Take back a connection without an open transaction or an unread reply."""
        now, done = self._runtime.now(), list[L]()
        with self._mutex:
            self._used.discard(connection)
            if not self._closed and connection.usable():
                self._idle.append((connection, now))
            else:
                done.append(connection)
            if self._idle and self._idle[0][1] < now - MAX_IDLE:
                done.append(self._idle.pop(0)[0])
        if not urgent:
            self._permits.give()
        for one in done:
            await one.close()

    def drop(self, connection: L, *, urgent: bool = False) -> None:
        """Close a connection whose state is unknown."""
        connection.abort()
        with self._mutex:
            self._used.discard(connection)
        if not urgent:
            self._permits.give()

    async def forget_idle(self) -> None:
        """Close all idle connections: the server closed one of them."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.abort()

    async def close(self) -> None:
        """Close all connections; those in use when they come back."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.close()

    def after_fork(self) -> None:
        """Start anew in a forked child; the connections are the parent's."""
        self._inherited += [
            *(connection for connection, _ in self._idle),
            *self._used,
        ]  # kept: a garbage-collected connection would close the session of the parent
        for connection in self._inherited:
            connection.disown()
        self._reset()

    async def _usable_connection(self, until: float) -> tuple[L, bool]:
        if self._closed:
            raise no_answer(self._where, "the client is closed", unknown=False)
        while True:
            with self._mutex:
                connection = self._idle.pop()[0] if self._idle else None
                if connection is not None:
                    self._used.add(connection)
            if connection is None:
                break
            if connection.usable():
                return connection, False
            connection.abort()
            with self._mutex:
                self._used.discard(connection)
        connection = await self._connect(max(until - self._runtime.now(), 0.001))
        with self._mutex:
            self._used.add(connection)
        return connection, True

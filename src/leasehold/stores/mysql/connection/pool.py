"""The connections of one client to MySQL or MariaDB that are in no transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from weakref import WeakSet

from leasehold._runtimes.base import Runtime
from leasehold.stores.mysql.connection.base import Connection, no_answer

MAX_IDLE = 60.0
"""Seconds for which an idle connection is kept open."""


class Pool:
    """The connections of one client: opened when needed, used by one caller at a time, kept while idle."""

    def __init__(self, runtime: Runtime, connect: Callable[[float], Awaitable[Connection]], where: str) -> None:
        self._runtime = runtime
        self._connect = connect
        self._where = where
        self._inherited: list[Connection] = []
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.recursive_mutex()  # the collector may close a coroutine, which drops its connection
        self._idle: list[tuple[Connection, float]] = []  # with the time of their last use, the latest at the end
        # Weak: PyMySQL closes a connection with its last reference, as when a signal handler interrupts its user.
        # A connection of asyncmy stays open until it is aborted, or its event loop is gone.
        self._used: WeakSet[Connection] = WeakSet()
        self._retired: WeakSet[Connection] = WeakSet()  # in use, too, but not to be used again
        self._closed = False

    async def take(self, until: float) -> tuple[Connection, bool]:
        """Return a connection for one caller, and whether it is new. `give` or `drop` takes it back.

        Raises:
            StoreUnavailable: no server answered in time; nothing was sent.
        """
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

    async def give(self, connection: Connection) -> None:
        """Take back a connection without an open transaction or an unread reply."""
        now, done = self._runtime.now(), list[Connection]()
        with self._mutex:
            try:
                self._used.remove(connection)
                keep = not self._closed and connection.usable()
            except KeyError:  # it is retired
                keep = False
            if keep:
                self._idle.append((connection, now))
            else:
                done.append(connection)
            if self._idle and self._idle[0][1] < now - MAX_IDLE:
                done.append(self._idle.pop(0)[0])
        for one in done:
            await one.close()

    def drop(self, connection: Connection) -> None:
        """Close a connection whose state is unknown."""
        connection.abort()
        with self._mutex:
            self._used.discard(connection)

    async def forget_idle(self) -> None:
        """Close all idle connections: the server closed one of them."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.abort()

    async def retire(self) -> None:
        """Close all connections, those in use when they come back: their server is no primary any more."""
        with self._mutex:
            self._retired.update(self._used)
            self._used = WeakSet()
        await self.forget_idle()

    async def close(self) -> None:
        """Close all connections; those in use when they come back."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.close()

    def after_fork(self) -> None:
        """Start anew in a forked child; the connections are the parent's."""
        # Kept: a garbage-collected connection would close the session of the parent.
        self._inherited += [*(connection for connection, _ in self._idle), *self._used, *self._retired]
        for connection in self._inherited:
            connection.disown()
        self._reset()

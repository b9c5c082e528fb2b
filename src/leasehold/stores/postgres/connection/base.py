"""Transactions and connections of one client, for both flavors: these differ in how they wait for a socket.

Theory of operation
-------------------
* A transaction begins in the same batch as its first statements. Its time limits are set in it and for it alone, so
  they work behind a pooler, too. The server ends a slow statement, a long wait for a lock, and a transaction that is
  idle because this process was stopped. So a client that stalls with a locked row delays the others for
  `transaction.STALL` at most.
* Each exchange has a deadline on the client's side, for a silent server. A connection with an outstanding answer is
  closed, never used again.
* A connection that breaks in its first exchange after it was idle was dead. What was no commit is repeated on a new
  one; after a commit the outcome is unknown, and the engine repeats it.
* Messages come on a connection of their own; see `notifications`.
* A pooler is detected at the first connection: the process id that it reports is not that of the backend. Session
  settings are then left alone, because other clients use the session, too.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from leasehold._runtimes.base import Runtime
from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.stores._sql.transport import GRACE, OnDisconnect, OnMessage, Permit, Statement, Transaction
from leasehold.stores.postgres.connection.endpoints import Endpoint, Endpoints
from leasehold.stores.postgres.connection.errors import Broken, ServerError, cannot_connect, no_answer, refused
from leasehold.stores.postgres.connection.exchange import Connection, SocketWait, Steps, connecting
from leasehold.stores.postgres.connection.notifications import Subscriptions
from leasehold.stores.postgres.connection.pool import Pool
from leasehold.stores.postgres.connection.settings import Settings
from leasehold.stores.postgres.connection.transaction import PostgresTransaction

T = TypeVar("T")

POOLED = (
    "it may give a session to other clients, with its lock. Connect to the server itself, or use lease rows (no "
    "mode=session in the URL), or transaction_lock inside your own transaction; if it keeps each session for one "
    "client (pool_mode=session), say so by pooler=session"
)

OLDEST = 100_000
"""Oldest server: PostgreSQL 10."""

STARTED = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"

WHO = Statement(
    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery()::int, "
    f"(current_setting('default_transaction_read_only') = 'on')::int, {STARTED}"
)

SESSION_SETTINGS = (
    Statement("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"),
    Statement(
        "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '3', false), "
        "set_config('tcp_keepalives_count', '3', false), set_config('default_transaction_read_only', 'off', false), "
        "set_config('default_transaction_isolation', 'read committed', false)"
    ),
    Statement("SELECT set_config(name, '1s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'"),
)
"""Sets up a session that no pooler shares."""


class PostgresTransport(ABC):
    """See `leasehold.stores._sql.transport.SQLTransport`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, on_message: OnMessage, on_disconnect: OnDisconnect
    ) -> None:
        self._runtime = runtime
        self.settings = settings
        self.where = settings.where
        self._on_message = on_message
        self._on_silence = on_disconnect
        self._forget()

    def _forget(self) -> None:
        self._closed = False
        # Weak: the last reference that goes closes a connection, also when a signal handler interrupts its user.
        self._connections: WeakSet[Connection] = WeakSet()
        self._mutex = self._runtime.recursive_mutex()  # the collector may close a coroutine, which drops its connection
        self._pool = Pool(self._runtime, self.settings.pool)
        self._reserved = Pool(self._runtime, 1)
        self._sessions: list[Connection] = []
        self._subscriptions = Subscriptions(self._runtime, self, self._on_message, self._on_silence)
        self._endpoints = Endpoints(self._runtime, self._addresses)
        self.facts: dict[str, Any] = {}

    # --- what differs by flavor --------------------------------------------------------------------------------

    @abstractmethod
    async def _ready(self, need: SocketWait, timeout: float | None) -> bool:
        """Wait for a socket; return whether it was ready within ``timeout`` seconds (None: without a limit).

        Raises:
            OSError: this socket cannot be waited for.
        """

    @abstractmethod
    async def _addresses(self, host: str, within: float) -> Sequence[str]:
        """Return the addresses of a host, within so many seconds; blocking callers wait for as long as it takes.

        Raises:
            OSError: it has none; or a TimeoutError.
            UnicodeError: the name cannot be one of a host.
        """

    # --- exchanges ---------------------------------------------------------------------------------------------

    async def run(self, steps: Steps[T], until: float | None, *, goes_on: bool = False) -> T:
        """Drive the generator to its end, before ``until`` on the boot-time clock.

        It is closed in any case, except after a time-out with ``goes_on``: then it may be driven further.

        Raises:
            TimeoutError: the deadline is over. Unless it is driven further, the connection cannot be used any more.
            Broken: the connection ended, or its socket cannot be waited for.
        """
        kept = False
        try:
            need = next(steps)
            while await self._ready(need, None if until is None else max(until - self._runtime.now(), 0.0)):
                need = next(steps)
            raise TimeoutError("it answered too slowly")
        except StopIteration as stop:
            result: T = stop.value
            return result
        except TimeoutError:
            kept = goes_on
            raise
        except OSError as error:
            raise Broken(str(error)) from None
        finally:
            if not kept:
                steps.close()  # it is not driven further: a connection that was opening or closing is closed now

    # --- transactions ------------------------------------------------------------------------------------------

    async def transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], *, within: float, reserved: bool = False
    ) -> T:
        pool = self._reserved if reserved else self._pool
        return await self._runtime.shield(self._transact(work, within, pool), GRACE)

    async def _transact(self, work: Callable[[Transaction], Coroutine[Any, Any, T]], within: float, pool: Pool) -> T:
        until, mine = self._runtime.now() + within, list[Permit]()
        try:
            if not await pool.permits.take(until, mine):
                raise no_answer(self.where, "all connections of this client are in use", unknown=False)
            return await self._on_connection(work, until, pool)
        finally:
            mine.clear()
            pool.permits.notify()

    async def _on_connection(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], until: float, pool: Pool
    ) -> T:
        connection: Connection | None = None
        usable: Connection | None = None
        idle, home = pool.take(), pool
        try:
            try:
                connection = await self._fresh(idle, until)
            except StoreUnavailable:
                if pool is self._pool or (idle := self._idle_one()) is None:
                    raise
                connection, home = idle, self._pool
            tx = PostgresTransaction(self._runtime, self.run, connection, until)
            try:
                result = await work(tx)
                await tx.end()
                usable = connection
                return result
            except (TimeoutError, Broken) as error:
                if not tx.stale or connection is not idle:
                    raise no_answer(self.where, error, unknown=tx.committing) from None
            except ServerError as error:
                usable = connection if await tx.abort(error) else None
                raise refused(self.where, error) from None
            except LeaseholdError:
                usable = connection if await tx.abort(None) else None
                raise
        finally:
            if connection is not None and (usable is None or not home.give(usable)):
                self.drop(connection)
        for other in home.forget_idle():  # they lead to where it led, as before a failover
            self.drop(other)
        return await self._on_connection(work, until, pool)

    async def _fresh(self, connection: Connection | None, until: float) -> Connection:
        """Return the idle connection if it is still open, else a new one."""
        if connection is not None:
            if connection.open and self.alive(connection):
                return connection
            self.drop(connection)
        return await self.connect(until)

    def _idle_one(self) -> Connection | None:
        """Return an idle connection for a renewal: the server has as many connections as it allows."""
        while (connection := self._pool.take()) is not None:
            if connection.open and self.alive(connection):
                return connection
            self.drop(connection)
        return None

    def alive(self, connection: Connection) -> bool:
        """Return whether an idle connection may be used: nothing arrived on it unasked, such as its end."""
        poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        try:
            poll.register(connection.fd, select.POLLIN)
        except Broken:
            return False
        return not poll.poll(0)

    # --- connections -------------------------------------------------------------------------------------------

    async def connect(self, until: float, settings: Settings | None = None) -> Connection:
        """Open a connection, with other settings than usual if given, and check the server.

        Raises:
            StoreUnavailable: no server answers, or none that can be used; nothing was sent.
            Unsupported: the server is too old.
        """
        if self._closed:
            raise no_answer(self.where, "the client is closed", unknown=False)
        there = settings or self.settings
        try:
            connection = await self._endpoints.first(there, self._attempt, until)
        except Broken as error:
            failed = cannot_connect(there.where, str(error))
        except ServerError as error:
            failed = refused(there.where, error)
        else:
            if settings is None:
                self.facts = connection.facts
                if connection.facts["pooled"]:
                    self._subscriptions.found_pooler()
            return connection
        raise failed  # out here it has no context

    async def _attempt(self, settings: Settings, endpoint: Endpoint, until: float) -> Connection:
        connection = await self._connected(settings, endpoint, until)
        try:
            await self._greet(connection, endpoint, until)
        finally:
            if not connection.facts:
                self.drop(connection)
        return connection

    async def _connected(self, settings: Settings, endpoint: Endpoint, until: float) -> Connection:
        connection = await self.run(connecting(settings.conninfo(**endpoint.options)), until)
        with self._mutex:
            self._connections.add(connection)
        return connection

    async def _greet(self, connection: Connection, endpoint: Endpoint, until: float) -> None:
        ((row,),) = await self.run(connection.exchange([WHO]), until)
        backend, version, standby, read_only, started = row
        pooled = backend != connection.backend
        if version < OLDEST:
            raise Unsupported(f"the server at {self.where} is PostgreSQL {version // 10000}; locks need 10 or later")
        if standby:
            raise Broken(endpoint.failed("the server is a standby, which is read-only"))
        if not pooled:
            await self.run(connection.exchange(SESSION_SETTINGS), until)
            connection.prepares = True
        connection.facts = {
            "backend": backend, "pooled": pooled, "read_only": bool(read_only), "encrypted": connection.encrypted,
            "started": started,
        }  # fmt: skip

    async def session(self, until: float) -> Connection:
        """Return a connection for a session lock; `keep` or `drop` takes it back.

        Raises:
            Unsupported: a pooler is in between, which may give the session to other clients.
        """
        with self._mutex:
            idle = self._sessions.pop() if self._sessions else None
        connection = await self._fresh(idle, until)
        if connection.facts["pooled"] and not self.settings.trust_pooler:
            self.drop(connection)
            raise Unsupported(f"a connection pooler is in front of {self.where}: {POOLED}")
        return connection

    def keep(self, connection: Connection) -> None:
        """Take back a connection that can be used again."""
        with self._mutex:
            if not self._closed and len(self._sessions) < self.settings.pool:
                self._sessions.append(connection)
                return
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection."""
        with self._mutex:
            self._connections.discard(connection)
        connection.close()

    # --- messages ----------------------------------------------------------------------------------------------

    @property
    def channel(self) -> str:
        return self._subscriptions.channel

    def generation(self) -> int:
        return self._subscriptions.generation

    async def listen(self, within: float) -> int:
        return await self._subscriptions.listen(within)

    # --- its own life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
        await self._subscriptions.close()
        for idle in (*self._pool.close(), *self._reserved.close(), *self._sessions):
            self.drop(idle)

    def after_fork(self) -> None:
        for connection in self._connections:
            connection.disown()
        self._forget()

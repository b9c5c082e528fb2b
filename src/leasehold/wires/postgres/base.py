"""Transactions and messages of one client, written once: what differs by colour is how to wait for a socket.

Theory of operation
-------------------
* A transaction opens in the same batch as its first statements. Its limits are set in it and for it alone, so that they
  hold behind a pooler, too: the server ends a statement that is too slow, a wait for a lock that is too long, and a
  transaction that stands idle because this process was stopped. So a client that stalls with the row of a name locked
  holds up the others for `transaction.STALL` at most.
* Each exchange has a deadline of ours, for a server that is silent. A connection on which an answer is outstanding is
  closed, never used again.
* Messages come on one connection of their own. It is made when somebody first waits, and read by one job.
* A pooler shows itself at the first connection: the process id that it gives at the start is not that of the backend.
  Settings of a session are then left alone, for the session belongs to others, too, and there are no messages, unless
  the connection for them is told a way past it. That it leads to the same database is seen by the lock that it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.model import ticket_id
from leasehold.runtimes.base import Job, Runtime, Signal
from leasehold.wires.postgres.errors import Broken, ServerError, cannot_connect, no_answer, refused
from leasehold.wires.postgres.link import Link, Steps, connecting
from leasehold.wires.postgres.pool import Pool
from leasehold.wires.postgres.settings import Settings
from leasehold.wires.postgres.transaction import PostgresTransaction
from leasehold.wires.sql import OnMessage, OnSilence, Outcome, Refused, Row, Statement, Transaction

T = TypeVar("T")

LISTEN_WITHIN = 5.0
"""Seconds that opening the connection for messages may take."""

POOLED = (
    "it may give a session to others, with the lock that it has. Connect to the server itself, or use lease rows (no "
    "mode=session in the URL), or transaction_lock inside your own transaction; if it keeps each session for one "
    "client (pool_mode=session), say so by pooler=session"
)

OLDEST = 100_000
"""Oldest server: PostgreSQL 10."""

WHO = Statement(
    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery()::int, "
    "(current_setting('default_transaction_read_only') = 'on')::int"
)
EARS = 1818583393  # "leas"
"""First half of the key of the advisory lock that shows that somebody listens on a channel; `ear_number` is the other.
It is held, shared, by the session that listens: when its client dies it goes with it, and who hands a name on passes
over those who would not hear of it."""

EAR_SEEN = Statement(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = $1 "
    "AND objid::bigint = $2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

KEEP = (
    Statement("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"),
    Statement(
        "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '3', false), "
        "set_config('tcp_keepalives_count', '3', false), set_config('default_transaction_read_only', 'off', false)"
    ),
    Statement("SELECT set_config(name, '1s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'"),
)
"""Settings of a session that is ours alone."""


class PostgresWire(ABC):
    """See `leasehold.wires.sql.SQLWire`."""

    def __init__(self, runtime: Runtime, settings: Settings, on_message: OnMessage, on_silence: OnSilence) -> None:
        self._runtime = runtime
        self.settings = settings
        self.where = settings.where
        self._on_message = on_message
        self._on_silence = on_silence
        self._forget()

    def _forget(self) -> None:
        self._closed = False
        self._links: set[Link] = set()
        self._mutex = self._runtime.mutex()
        self._pool = Pool(self._runtime, self.settings.pool)
        self._spare = Pool(self._runtime, 1)
        self._sessions: list[Link] = []
        number = int.from_bytes(self._runtime.random_bytes(4), "big") >> 1
        self._name = f"leasehold_{number:08x}_{ticket_id(self._runtime.random_bytes(16))}"
        self._hears = self.settings.messages
        self._epoch = 0
        self._count = 0
        self._opening: list[Signal] = []
        self._ear: Job | None = None
        self._ear_link: Link | None = None
        self._deaf: StoreUnavailable | None = None
        self.facts: dict[str, Any] = {}

    # --- what differs by colour --------------------------------------------------------------------------------

    @abstractmethod
    async def run(self, steps: Steps[T], until: float | None) -> T:
        """Drive the generator to its end, before ``until`` on the boot-time clock.

        Raises:
            TimeoutError: it is too late. It may be driven on; else the connection is of no more use.

        """

    @abstractmethod
    async def _addresses(self, hosts: Sequence[str]) -> str | None:
        """Return the addresses of the hosts, for libpq's ``hostaddr``; None to leave that to libpq."""

    @abstractmethod
    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a transaction so that a cancellation finds it decided (see `SQLWire.transact`)."""

    # --- transactions ------------------------------------------------------------------------------------------

    async def transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], *, within: float, reserved: bool = False
    ) -> T:
        return await self._to_its_end(self._transact(work, within, self._spare if reserved else self._pool))

    async def _transact(self, work: Callable[[Transaction], Coroutine[Any, Any, T]], within: float, pool: Pool) -> T:
        until = self._runtime.now() + within
        try:
            link = await pool.take(until)
        except TimeoutError as error:
            raise no_answer(self.where, error, unknown=False) from None
        usable: Link | None = None
        try:
            link = await self._fresh(link, until)
            tx = PostgresTransaction(self._runtime, self.run, link, until)
            try:
                result = await work(tx)
                await tx.end()
                usable = link
                return result
            except (TimeoutError, Broken) as error:
                raise no_answer(self.where, error, unknown=tx.committing) from None
            except ServerError as error:
                usable = link if await tx.abort(error) else None
                raise refused(self.where, error) from None
            except LeaseholdError:
                usable = link if await tx.abort(None) else None
                raise
        finally:
            if link is not None and usable is None:
                self.drop(link)
            if usable is not None and self._closed:
                self.drop(usable)
                usable = None
            pool.give(usable)

    async def _fresh(self, link: Link | None, until: float) -> Link:
        """Return the idle connection if it still lives, or else another."""
        while link is not None:
            if link.open and self.alive(link):
                return link
            self.drop(link)
            link = None
        return await self.connect(until)

    @abstractmethod
    def alive(self, link: Link) -> bool:
        """Say whether an idle connection may be used: it is of this loop, and nothing came unasked."""

    # --- connections -------------------------------------------------------------------------------------------

    async def connect(self, until: float, settings: Settings | None = None) -> Link:
        """Open a connection, by other settings than usual if they are given, and look who answers.

        Raises:
            StoreUnavailable: nobody does, or nobody that can be used; nothing was sent.
            Unsupported: the server is too old.

        """
        if self._closed:
            raise no_answer(self.where, "the client is closed", unknown=False)
        failed: StoreUnavailable | None = None
        link: Link | None = None
        there = settings or self.settings
        try:
            link = await self._connected(until, there)
            await self._greet(link, until)
        except TimeoutError:
            failed = cannot_connect(there.where, "timed out")
        except Broken as error:
            failed = cannot_connect(there.where, str(error))
        except ServerError as error:
            failed = refused(there.where, error)
        finally:
            if link is not None and (failed is not None or not link.facts):
                self.drop(link)
        if failed is not None:
            raise failed
        assert link is not None
        if settings is None:
            self.facts = link.facts
            self._hears = self._hears and (not link.facts["pooled"] or self.settings.ears is not None)
        return link

    async def _connected(self, until: float, settings: Settings) -> Link:
        try:
            addresses = await self._addresses(settings.hosts) if settings.hosts else None
        except OSError as error:
            raise Broken(f"could not translate host name: {error}") from None
        conninfo = settings.conninfo(**({"hostaddr": addresses} if addresses else {}))
        link = await self.run(connecting(conninfo), until)
        with self._mutex:
            self._links.add(link)
        return link

    async def _greet(self, link: Link, until: float) -> None:
        ((row,),) = await self.run(link.exchange([WHO]), until)
        backend, version, standby, read_only = row
        pooled = backend != link.backend
        facts = {
            "version": version,
            "standby": bool(standby),
            "read_only": bool(read_only),
            "pooled": pooled,
            "backend": backend,
            "encrypted": link.encrypted,
        }
        if version < OLDEST:
            raise Unsupported(f"the server at {self.where} is PostgreSQL {version // 10000}; locks need 10 or later")
        if standby:
            raise cannot_connect(self.where, "the server is a standby, which is read-only")
        if not pooled:
            await self.run(link.exchange(KEEP), until)
            link.prepares = True
        link.facts = facts

    async def session(self, until: float) -> Link:
        """Return a connection for somebody who keeps it; it goes back by `keep` or `drop`.

        Raises:
            Unsupported: a pooler stands in between, which may give the session to others.

        """
        link: Link | None = None
        with self._mutex:
            link = self._sessions.pop() if self._sessions else None
        link = await self._fresh(link, until)
        if link.facts["pooled"] and not self.settings.trust_pooler:
            self.drop(link)
            raise Unsupported(f"a connection pooler stands before {self.where}: {POOLED}")
        return link

    def keep(self, link: Link) -> None:
        """Take a connection back that can be used again."""
        with self._mutex:
            if not self._closed and len(self._sessions) < self.settings.pool:
                self._sessions.append(link)
                return
        self.drop(link)

    def drop(self, link: Link) -> None:
        """Close a connection."""
        with self._mutex:
            self._links.discard(link)
        link.close()

    # --- messages ----------------------------------------------------------------------------------------------

    @property
    def channel(self) -> str:
        return self._name if self._hears and self._epoch else ""

    def epoch(self) -> int:
        return self._epoch

    async def listen(self, within: float) -> int:
        if self._epoch or not self._hears:
            return self._epoch
        signal = self._runtime.signal()
        with self._mutex:
            self._opening.append(signal)
            if self._ear is None or not self._ear.alive():
                self._ear = self._runtime.spawn(self._hear, "leasehold-listen")
        await signal.wait(within)
        if self._epoch or not self._hears:
            return self._epoch
        raise self._deaf or no_answer(self.where, "the subscription took too long", unknown=False)

    async def _hear(self) -> None:
        link: Link | None = None
        try:
            link = await self.connect(self._runtime.now() + LISTEN_WITHIN, self.settings.ears)
            self._hears = self._hears and not link.facts["pooled"]
            if not self._hears:
                return
            shown = Statement("SELECT pg_advisory_lock_shared($1::int, $2::int)", (EARS, ear_number(self._name)))
            await self.run(
                link.exchange([Statement(f'LISTEN "{self._name}"'), shown]), self._runtime.now() + LISTEN_WITHIN
            )
            if self.settings.ears is not None:
                await self._same_database(self.settings.ears)
            self._ear_link, self._deaf = link, None
            self._count += 1
            self._epoch = self._count
            self._opened()
            await self.run(link.hear(self._on_message), None)
        except LeaseholdError as error:
            self._deaf = error if isinstance(error, StoreUnavailable) else None
        except (Broken, TimeoutError):
            pass
        except ServerError as error:
            self._deaf = refused(self.where, error)
        finally:
            was, self._epoch, self._ear_link = self._epoch, 0, None
            if link is not None:
                self.drop(link)
            with self._mutex:
                self._ear = None
            self._opened()
            if was:
                self._on_silence()

    async def _same_database(self, ears: Settings) -> None:
        """Raise unless those who hand names on see who listens here: else they would pass over us."""
        asked = Statement(EAR_SEEN.text, (EARS, ear_number(self._name)))

        async def look(tx: Transaction) -> list[list[Row]]:
            return await tx.commit(asked)

        ((found,),) = await self.transact(look, within=LISTEN_WITHIN)
        if not found[0]:
            words = f"listen= leads to another database ({ears.where}) than the rest of the URL ({self.where})"
            raise Refused(f"{words}; name the server behind the pooler", outcome=Outcome.LASTING)

    def _opened(self) -> None:
        with self._mutex:
            opening, self._opening = self._opening, []
        for signal in opening:
            signal.set()

    # --- its own life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        with self._mutex:
            ear, link = self._ear, self._ear_link
        if link is not None:
            link.shut()
        if ear is not None:
            await ear.join(1.0)
        for idle in (*self._pool.empty(), *self._spare.empty(), *self._sessions):
            self.drop(idle)

    def after_fork(self) -> None:
        for link in self._links:
            link.disown()
        self._forget()


def ear_number(channel: str) -> int:
    """Return the second half of the key of the advisory lock that goes with a channel; 0 if it is not one of ours."""
    parts = channel.split("_")
    try:
        return int(parts[1], 16) if len(parts) > 2 else 0
    except ValueError:
        return 0

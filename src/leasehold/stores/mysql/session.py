"""``mode=session``: the server's own locks, by GET_LOCK, each held by a connection of its own.

Theory of operation
-------------------
The server frees such a lock when its session ends, for whatever reason: it notices a crashed holder as soon as the
connection closes. So the lock is no lease, and there is no timed promise: a holder that loses its connection loses the
lock. A job checks all the time whether the server has closed the connection. But a connection that is cut on the
server's side alone shows nothing here before the next renewal, and another client may have the lock by then. A guard
that checks tokens refuses late writes.

* A holder has a connection of its own. The waiters of a client for one name share one connection (see
  `_sql.session.wait_queue`). A job waits on it with a time limit, in slices; the server answers when the lock is free.
  ``GET_LOCK`` returns 1 for acquired, 0 for taken, NULL for an error.
* The token is raised in the row of the name while the lock is held, so it increases from holder to holder.
* `renew` asks on that connection whether it still has the lock. This also keeps the session alive: the server ends it
  after a lease of silence, so a holder that is cut off blocks others for little longer.
* A connection that breaks is closed, and its lock is gone: no other connection can have it. The server may not know
  yet, so another connection tells it to end that session.
* The server's lock names are short, without case, and shared by all its databases. So ours are hashed (160 bits), with
  the database and the namespace. Two names with one hash would exclude each other, and no more.

Rows of this mode and lease rows are separate, so all clients must use a name in one mode. An attempt to acquire refuses
a name that lease rows use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leasehold._model import (
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    Owner,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.store_api import LossCallback
from leasehold.stores._common import queues
from leasehold.stores._sql import rows
from leasehold.stores._sql.queue_snapshot import above, ns
from leasehold.stores._sql.semaphore import Semaphore
from leasehold.stores._sql.session import statements
from leasehold.stores._sql.session.claiming import Claims
from leasehold.stores._sql.session.connection_watch import Watch
from leasehold.stores._sql.session.wait_queue import WaitQueues
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.store import PATIENCE
from leasehold.stores._sql.tables import schema
from leasehold.stores._sql.transport import Row, Statement, Transaction
from leasehold.stores.mysql import session_statements as sql
from leasehold.stores.mysql.connection.base import no_answer
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.connection.transport import RESTORE_TIMEOUT, MySQLTransport
from leasehold.stores.mysql.sessions import Session, Sessions
from leasehold.stores.mysql.statements import CLOCK
from leasehold.stores.mysql.store import MySQLStore

MAX_TRIES = 16
"""Connections that try at the same time for callers that do not wait."""

AT_ONCE = 32
"""Holds that are renewed at the same time."""

OTHER_MODE = "with mode=session; use another name, or the same mode everywhere"


class MySQLSessionStore:
    """See `leasehold.store_api.Store` for what each method promises, and above for what is not promised."""

    capabilities = Capabilities(
        fair=False,
        lock_delay=False,
        hands_over=False,
        shortest=1.0,
        tardy=1.0,
        crash_bound="within a second; cut off, within the lease + 1 s",
    )

    def __init__(
        self, runtime: Runtime, settings: Settings, namespace: str, transport: MySQLTransport | None = None
    ) -> None:
        """Make a store; ``transport``, if given, replaces the connection to the database, for example by a model."""
        self._runtime = runtime
        self._rows = MySQLStore(runtime, settings, namespace, transport)
        self._transport = self._rows.mysql
        self._space = namespace.encode()
        self._watch = Watch(runtime, lambda: self._sessions.any_held(), lambda: self._sessions.closed_connections())
        self._begin()

    def _begin(self) -> None:
        self._sessions = Sessions(self._runtime, self._transport, self._space)
        self._wait_queues: WaitQueues[Session] = WaitQueues(self._runtime, self._sessions)
        self._claims = Claims(self._runtime, self._wait_queues, self._store_waiters, self._renew_entries)
        self._once = Semaphore(self._runtime, MAX_TRIES)

    # --- the lock ----------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Try to acquire ``name``."""
        until = self._runtime.now() + within
        await self._sessions.end_broken(ticket.id, until)
        held = self._sessions.get(ticket.id)
        if held is not None and held.token is not None:
            since = self._runtime.now()
            if await self._check_lock(held, until) is RenewalResult.HELD:
                return Granted(held.token, since, held.lease)
        if not join:
            return await self._try_once(name, ticket, until)

        async def grant(session: Session) -> Granted:
            session.ticket = ticket
            return await self._granted(session, until)

        return await self._claims.try_acquire(name, ticket, until, grant)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until the turn has come; the next attempt takes the token."""
        await self._wait_queues.wait(ticket.id, timeout)
        return None

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Release the lock, or stop waiting for it; for a ticket of another client, end the session."""
        until = self._runtime.now() + within
        waiter = self._wait_queues.get(ticket.id)
        if waiter is not None:
            await self._wait_queues.leave(waiter, until)
            await self._sessions.end_broken(ticket.id, until)
            if waiter.stored:
                await self._remove_entry(name, ticket.id, reason, until)
            return True
        session = self._sessions.take(ticket.id)
        if session is None:
            ended = await self._sessions.end_broken(ticket.id, until)
            if ended is None:
                return await self._end_other(name, ticket.id, reason, until)
            await self._remove_entry(name, ticket.id, reason, until)
            return ended
        if not session.connection.usable():  # the server closed the connection, and freed the lock, before this release
            self._sessions.close(session)
            return False
        last = (statements.remove_entry(session.key, ticket.id), sql.release_lock(session.lock), RESTORE_TIMEOUT)
        try:
            answers = await self._sessions.leave(session, last, until)
        except BaseException:
            self._sessions.remember_broken(session)  # the next attempt ends the session
            if not session.closed:
                self._sessions.close(session)
            raise
        self._sessions.forget_broken(ticket.id)
        if self._rows._sweeper.due():
            await self._rows._sweep(until)
        return bool(answers[-2][0][0] == 1)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Ask on each connection whether it still has its lock, which also keeps the session alive."""
        until = self._runtime.now() + within
        results: list[RenewalResult] = []
        for start in range(0, len(tickets), AT_ONCE):
            some = [self._renew_one(ticket, until) for _, ticket in tickets[start : start + AT_ONCE]]
            found = await self._runtime.gather(*some)
            results += [one if isinstance(one, RenewalResult) else RenewalResult.UNKNOWN for one in found]
        await self._claims.renewed([ticket for _, ticket in tickets], until)
        return results

    async def _renew_one(self, ticket: Ticket, until: float) -> RenewalResult:
        session = self._sessions.get(ticket.id)
        if session is None:
            return RenewalResult.GONE if self._wait_queues.get(ticket.id) is None else RenewalResult.QUEUED
        return await self._check_lock(session, until)

    async def _check_lock(self, session: Session, until: float) -> RenewalResult:
        """Ask whether the session has the lock; if not, close it."""
        try:
            answers = await self._sessions.on(session, (session.ttl, sql.has_lock(session.lock)), until)
        except StoreUnavailable:
            return RenewalResult.GONE if self._sessions.get(session.ticket.id) is not session else RenewalResult.UNKNOWN
        if answers[-1][0][0] == 1:
            return RenewalResult.HELD
        self._sessions.lost(session)
        return RenewalResult.GONE

    # --- looking, cells ----------------------------------------------------------------------------------------

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        """Show names in use: stored holders whose sessions have the lock, and waiters that were renewed."""
        start = prefix.encode("utf-8", "surrogatepass")
        end = start + b"\0" if exact else above(start)
        space = sql.MARK + self._space

        async def work(tx: Transaction) -> tuple[float, list[Row], dict[bytes, int]]:
            (clock,) = await tx.ask(Statement(self._rows._dialect.clock))
            now = rows.clock_of(clock).now
            (found,) = await tx.ask(Statement(self._rows._dialect.names, (space, start, end, ns(now))))
            names = sorted({bytes(row[1]) for row in found if row[4] is not None})
            if not names:
                return now, [], {}
            locks = [self._sessions.lock((self._space, name)) for name in names]
            (used,) = await tx.commit(sql.lock_holders(locks))
            return now, found, dict(zip(names, used[0], strict=True))

        now, found, used = await self._rows._transact(work, self._runtime.now() + PATIENCE)
        shown = [
            row for row in found
            if row[4] is not None
            and (used[bytes(row[1])] == int(row[19]) if row[5] == 0 else row[7] > ns(now))
        ]  # fmt: skip
        return [_view(view) for view in (queues.view(queue, now) for queue in rows.views_of(shown))]

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        """Change or read a cell."""
        return await self._rows.compare_and_set(name, change)

    # --- its own life ------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        """Return what the server's settings mean for the promises."""
        return await self._rows.diagnose()

    async def prepare(self) -> bool:
        """Create the tables; return whether any was missing."""
        return await self._rows.prepare()

    async def close(self) -> None:
        """Close the connections: the server frees their locks."""
        self._wait_queues.close()
        self._sessions.close_all()
        await self._watch.close()
        await self._rows.close()

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        self._rows.after_fork()
        self._watch.after_fork()
        self._begin()

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` from now on for each hold whose connection ends."""
        self._watch.report_losses(callback)

    async def _try_once(self, name: str, ticket: Ticket, until: float) -> Granted | Wait:
        """Try without a place in the queue; not while the queue of this client has waiters."""
        held: Sequence[Row]
        holder = statements.holder((sql.MARK + self._space, name.encode()))
        if not self._wait_queues.has_waiters(name):
            if not await self._once.take(until):
                raise no_answer(
                    self._transport.where, f"{MAX_TRIES} other attempts of this client are under way", unknown=False
                )
            try:
                session, has = await self._sessions.try_lock(name, ticket, until)
                if has:
                    return await self._granted(session, until)
                held, _ = await self._sessions.leave(session, (holder, RESTORE_TIMEOUT), until)
            finally:
                self._once.give()
        else:
            (held,) = await self._rows._transact(lambda tx: tx.commit(holder), until)
        return Wait(None, ticket.terms.lease, Owner.parse(held[0][0]) if held else None)

    async def _granted(self, session: Session, until: float) -> Granted:
        """Raise the token of a session that has the lock, and store the holder."""
        leased, since = sql.used_by_leases((self._space, session.key[1])), self._runtime.now()
        writes = (sql.raise_token(session.key), *sql.store_holder(session.key, session.ticket, session.number))
        try:
            answers = await self._sessions.transact(session, (leased, *writes, sql.token(session.key)), until)
            token, version = answers[-3][0]
            schema.check_version(version)
            if answers[2]:
                name = session.key[1].decode()
                raise NameInUse(f"{name!r} is in use by lease rows, and cannot be used {OTHER_MODE}", name=name)
        except BaseException:
            self._sessions.lost(session)  # this closes its connection, which frees the lock
            raise
        self._sessions.hold(session, int(token))
        self._watch.begin()
        return Granted(int(token), since, session.lease)

    async def _store_waiters(self, waiters: Sequence[Waiter[Session]], until: float) -> list[Owner | None]:
        keys = [(sql.MARK + self._space, name) for name in sorted({waiter.name.encode() for waiter in waiters})]
        writes = [statements.holder(key) for key in keys]
        for key in keys:
            writes += [Statement(self._rows._dialect.add_name, key), sql.remove_stale(key)]
        for waiter in waiters:
            writes += sql.store_waiter((sql.MARK + self._space, waiter.name.encode()), waiter.ticket)
        answers = await self._rows._transact(lambda tx: tx.commit(*writes), until)
        holders = {key[1]: Owner.parse(held[0][0]) for key, held in zip(keys, answers, strict=False) if held}
        return [holders.get(waiter.name.encode()) for waiter in waiters]

    async def _renew_entries(self, tickets: Sequence[str], until: float) -> None:
        renews = statements.renew_entries(CLOCK, tickets)
        await self._rows._transact(lambda tx: tx.commit(renews), until, reserved=True)

    async def _end_other(self, name: str, ticket: str, reason: ReleaseReason, until: float) -> bool:
        """End the session of a ticket of another client, if that session has the lock."""
        key = (sql.MARK + self._space, name.encode())
        lock = self._sessions.lock((self._space, name.encode()))

        async def work(tx: Transaction) -> int | None:
            found, used = await tx.ask(statements.hint_of(key, ticket), sql.lock_holders([lock]))
            return int(found[0][0]) if found and found[0][1] == 0 and used[0][0] == int(found[0][0]) else None

        session = await self._rows._transact(work, until)
        if session is None or not await self._sessions.kill(session, until):
            return False

        await self._remove_entry(name, ticket, reason, until)
        return True

    async def _remove_entry(self, name: str, ticket: str, reason: ReleaseReason, until: float) -> None:
        """Remove the row of a ticket whose connection is gone; after a forced release the token increases."""
        key = (sql.MARK + self._space, name.encode())

        async def work(tx: Transaction) -> None:
            await tx.commit(
                statements.remove_entry(key, ticket), *([sql.raise_token(key)] if reason is ReleaseReason.BREAK else [])
            )

        await self._rows._transact(work, until)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._transport.where}>"


def _view(view: View) -> View:
    """Show full leases: the expiry of a row says only when the row may be dropped."""
    holders = tuple(replace(entry, expires=entry.ticket.terms.lease) for entry in view.holders)
    waiters = tuple(replace(entry, expires=entry.ticket.terms.lease) for entry in view.waiters)
    return replace(view, holders=holders, waiters=waiters)

"""Locks that are the server's own, by GET_LOCK on a connection of the ticket's own: ``mode=session``.

Theory of operation
-------------------
The server frees such a lock when the session that has it ends, for whatever reason: a crash of the holder is noticed in
the time that a connection takes to close. So it is no lease, and there is no timed promise: who loses the connection
loses the lock. It is looked whether the server has closed it, again and again; but a connection that is cut on the
server's side alone shows nothing here before the next renewal, and somebody else may have the lock by then. A guard
that checks tokens refuses what comes late.

* Who holds has a connection of its own. Who waits has none: the waiters of a client for one name stand in a line and
  share one connection, on which a job asks with a time limit, in slices; the server wakes it when the lock is free (see
  `sql.wait_queues`). ``GET_LOCK`` says 1 for had, 0 for taken, NULL for an error.
* The token is raised in the row of the name while the lock is had, so it increases from holder to holder.
* `renew` asks on that connection whether it has the lock. That also keeps the session alive: the server is told to end
  it when it says nothing for a lease, so a holder that is cut off blocks others for little longer.
* A connection that breaks is gone, and the lock with it: no other connection can have it. If the server may not know
  yet, it is told on another connection to end that session.
* The server's names are short, without case and the same in all its databases. So ours are hashed (160 bits), with the
  database and the namespace. Two names of one hash would exclude each other, and no more.

Rows of this mode and lease rows are apart, so a name is to be used in one mode: a claim here refuses a name that is
leased.
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
"""Connections that try at the same time for those who do not wait."""

AT_ONCE = 32
"""Connections that are asked at the same time when many holds are renewed."""

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
        """Make a store; ``transport`` reaches something else than the database of the settings, as a model of one."""
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
        """Try to take ``name``."""
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
        """Sleep until the turn has come; the claim that follows takes the token."""
        await self._wait_queues.wait(ticket.id, timeout)
        return None

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Give the lock back, or stop waiting for it; of others' tickets, end the session."""
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
        if not session.connection.usable():  # the server hung up, and freed the lock, before has_waiters asked it to
            self._sessions.close(session)
            return False
        last = (statements.remove_entry(session.key, ticket.id), sql.release_lock(session.lock), RESTORE_TIMEOUT)
        try:
            answers = await self._sessions.leave(session, last, until)
        except BaseException:
            self._sessions.remember_broken(session)  # whoever asks again ends the session
            if not session.closed:
                self._sessions.close(session)
            raise
        self._sessions.forget_broken(ticket.id)
        if self._rows._sweeper.due():
            await self._rows._sweep(until)
        return bool(answers[-2][0][0] == 1)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Ask on each connection whether it has its lock still, which also keeps the session alive."""
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
        """Ask whether the session's connection has the lock; if not, it is over."""
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
        """Show names in use: those written down whose sessions have the lock, or that wait and were renewed."""
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
        """Say what the server's settings mean for the promises."""
        return await self._rows.diagnose()

    async def prepare(self) -> bool:
        """Make the tables; return whether any was missing."""
        return await self._rows.prepare()

    async def close(self) -> None:
        """Close the connections: the server frees what they hold."""
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
        """Tell ``callback`` from now on of holds whose connections end."""
        self._watch.report_losses(callback)

    async def _try_once(self, name: str, ticket: Ticket, until: float) -> Granted | Wait:
        """Try without a session in line: not while others of this client stand there."""
        held: Sequence[Row]
        holder = statements.holder((sql.MARK + self._space, name.encode()))
        if not self._wait_queues.has_waiters(name):
            if not await self._once.take(until):
                raise no_answer(self._transport.where, f"{MAX_TRIES} others are trying", unknown=False)
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
        """Take note that the session has the lock: raise the token, and write down who holds."""
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
            self._sessions.lost(session)  # its connection goes, and the lock with it
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
        """End the session of a ticket of another client, if it is the one that has the lock."""
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
        """Take a ticket whose connection is gone out of what is shown; after a break the token moves on."""
        key = (sql.MARK + self._space, name.encode())

        async def work(tx: Transaction) -> None:
            await tx.commit(
                statements.remove_entry(key, ticket), *([sql.raise_token(key)] if reason is ReleaseReason.BREAK else [])
            )

        await self._rows._transact(work, until)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._transport.where}>"


def _view(view: View) -> View:
    """Show full leases: the rows say only when they may be forgotten."""
    holders = tuple(replace(entry, expires=entry.ticket.terms.lease) for entry in view.holders)
    waiters = tuple(replace(entry, expires=entry.ticket.terms.lease) for entry in view.waiters)
    return replace(view, holders=holders, waiters=waiters)

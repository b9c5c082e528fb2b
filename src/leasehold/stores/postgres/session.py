"""``mode=session``: advisory locks, each held by a connection of its own, and free as soon as that connection ends.

Theory of operation
-------------------
The lock belongs to a session of the server. A holder has a session of its own. The waiters of a client for one name
share one session, which waits in the server's queue (see `_sql.session.wait_queue`). There is no polling. A job reads
the server's answer, so that neither a thread nor an event loop is blocked by the wait.

The server is told to end each session that is silent for the length of the lease (from PostgreSQL 14). A renewal is a
statement on that session. So a holder that stalls, or whose host vanishes, loses the lock at the end of its lease, as
with lease rows, and is notified before. A holder whose process or connection dies loses the lock at once. Before
PostgreSQL 14 only TCP's keep-alive ends a session whose host has vanished.

The row of the name keeps the token; entries show people who holds and waits. An entry with a session counts only while
the server's own list of locks has that session. An entry without one counts until its expiry, which renewals move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leasehold._model import Capabilities, Granted, Owner, QueueEntry, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._rules import Queue
from leasehold._runtimes.base import Runtime
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.store_api import LossCallback
from leasehold.stores._common import queues
from leasehold.stores._sql import rows
from leasehold.stores._sql.queue_snapshot import Key, above, ns
from leasehold.stores._sql.semaphore import Semaphore
from leasehold.stores._sql.session import statements
from leasehold.stores._sql.session.claiming import Claims
from leasehold.stores._sql.session.connection_watch import Watch
from leasehold.stores._sql.session.wait_queue import WaitQueues
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.store import PATIENCE
from leasehold.stores._sql.tables import schema
from leasehold.stores._sql.transport import Row, Statement, Transaction
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.connection.errors import no_answer
from leasehold.stores.postgres.connection.settings import Settings
from leasehold.stores.postgres.sessions import Session, Sessions
from leasehold.stores.postgres.statements import CLOCK
from leasehold.stores.postgres.store import MakeTransport, PostgresStore

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1
"""Seconds between two checks whether a session is in the server's queue: at first, and at most."""


@dataclass(frozen=True, eq=False, slots=True)
class FairWaiter:
    """A fair waiter, the session parked for it, and the statement that checks that session's place in the queue."""

    waiter: Waiter[Session]
    session: Session
    look: Statement


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """A ticket that holds, with the session of its lock."""

    name: str
    ticket: Ticket
    session: Session
    token: int


class SessionStore(PostgresStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=False, permits=False, lock_delay=False, crash_bound="at once when the connection dies, else the lease"
    )

    def __init__(
        self, runtime: Runtime, settings: Settings, namespace: str, transport: MakeTransport | None = None
    ) -> None:
        super().__init__(runtime, settings, namespace, transport)
        self._namespace = namespace
        self._watch = Watch(runtime, lambda: bool(self._holds), self._closed_connections)
        self._rows = self._space + advisory.SPACE
        self._begin()

    def _begin(self) -> None:
        self._holds: dict[str, Held] = {}
        self._sessions = Sessions(self._runtime, self._postgres, self._namespace)
        self._wait_queues: WaitQueues[Session] = WaitQueues(self._runtime, self._sessions)
        self._once = Semaphore(self._runtime, self._postgres.settings.pool)  # for claims that try once
        self._claims = Claims(
            self._runtime, self._wait_queues, self._store_waiters, self._renew_entries, self._has_lock
        )

    # --- the queue ---------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        until = since + within
        held = self._holds.get(ticket.id)
        if held is not None:
            return await self._repeat(held, since, until)
        if not join:
            return await self._try_once(name, ticket, since, until)
        return await self._claims.try_acquire(
            name, ticket, until, lambda session: self._granted(name, ticket, session, since, until)
        )

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        until = self._runtime.now() + within
        held = self._holds.pop(ticket.id, None)
        if held is not None:
            return await self._release(held, until)
        waiter = self._wait_queues.get(ticket.id)
        if waiter is None:
            return await self._break(name, ticket, until) if reason is ReleaseReason.BREAK else False
        await self._wait_queues.leave(waiter, until)
        if waiter.stored:
            removes = statements.remove_entry(self._key_of_rows(name), ticket.id)
            await self._transact(lambda tx: tx.commit(removes), until)
        return True

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until = self._runtime.now() + within
        answers = await self._runtime.gather(*(self._renew_one(ticket, until) for _, ticket in tickets))
        await self._claims.renewed([ticket for _, ticket in tickets], until)
        return [answer if isinstance(answer, RenewalResult) else RenewalResult.UNKNOWN for answer in answers]

    async def _renew_one(self, ticket: Ticket, until: float) -> RenewalResult:
        held = self._holds.get(ticket.id)
        if held is None:
            return RenewalResult.GONE if self._wait_queues.get(ticket.id) is None else RenewalResult.QUEUED
        if held.session.dead:
            return RenewalResult.GONE
        try:
            await self._sessions.ask(held.session, until, statements.renew_entries(CLOCK, [ticket.id]))
        except StoreUnavailable:
            return RenewalResult.GONE if held.session.dead else RenewalResult.UNKNOWN
        return RenewalResult.HELD

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        await self._wait_queues.wait(ticket.id, timeout)
        return None  # the next attempt finds the lock, and takes its token

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        start = prefix.encode("utf-8", "surrogatepass")
        end = start + b"\0" if exact else above(start)

        async def work(tx: Transaction) -> tuple[float, list[Row], list[Row]]:
            (clock,) = await tx.ask(Statement(self._dialect.clock))
            now = rows.clock_of(clock).now
            text = Statement(self._dialect.names, (self._rows, start, end, ns(now)))
            found, locks = await tx.commit(text, Statement(advisory.LOCKS))
            return now, found, locks

        now, found, locks = await self._transact(work, self._runtime.now() + PATIENCE)
        hints = {row[4]: row[19] for row in found if row[4] is not None}
        there = {(f"pid:{pid}", key) for pid, key in locks}
        views = [queues.view(self._current_entries(queue, hints, there, now), now) for queue in rows.views_of(found)]
        return [view for view in views if view.holders or view.waiters]

    def _current_entries(self, queue: Queue, hints: dict[str, str], there: set[tuple[str, int]], now: float) -> Queue:
        """Keep the entries whose sessions the server knows, and the waiters that were renewed."""
        key = self._sessions.key(queue.name)

        def living(entry: QueueEntry) -> bool:
            hint = hints[entry.ticket.id]
            return (hint, key) in there if hint else entry.expires > now

        def kept(entries: Sequence[QueueEntry]) -> tuple[QueueEntry, ...]:
            return tuple(replace(entry, expires=max(entry.expires, now + 0.001)) for entry in entries if living(entry))

        return replace(queue, holders=kept(queue.holders), waiters=kept(queue.waiters))

    # --- its own life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        holds, self._holds = list(self._holds.values()), {}
        for held in holds:
            self._sessions.close(held.session)
        self._wait_queues.close()
        await self._watch.close()
        await super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self._watch.after_fork()
        self._begin()

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` from now on for each hold whose connection ends."""
        self._watch.report_losses(callback)

    async def _closed_connections(self) -> list[str]:
        """Return the tickets whose connections the server has closed, as far as this end can see."""
        holds = list(self._holds.values())
        return [
            held.ticket.id
            for held in holds
            if not held.session.dead and await self._sessions.closed_connections(held.session)
        ]

    # --- steps -------------------------------------------------------------------------------------------------

    async def _try_once(self, name: str, ticket: Ticket, since: float, until: float) -> Granted | Wait:
        """Try without a place in the queue; not while the queue of this client has waiters."""
        if not self._wait_queues.has_waiters(name):
            if not await self._once.take(until):
                raise no_answer(self._postgres.where, "all connections of this client are in use", unknown=False)
            try:
                session, has = await self._sessions.try_lock(name, ticket, until)
            finally:
                self._once.give()
            if has:
                return await self._granted(name, ticket, session, since, until)
            (held,) = await self._sessions.ask(session, until, self._holder(name))
            self._sessions.keep(session)
        else:
            (held,) = await self._transact(lambda tx: tx.commit(self._holder(name)), until)
        return Wait(None, ticket.terms.lease, Owner.parse(held[0][0]) if held else None)

    async def _repeat(self, held: Held, since: float, until: float) -> Granted:
        """Answer a repeated attempt of a ticket that holds: it is the same hold."""
        try:
            if held.session.failed is not None:
                raise held.session.failed
            await self._sessions.ask(held.session, until, statements.renew_entries(CLOCK, [held.ticket.id]))
        except BaseException:
            self._holds.pop(held.ticket.id, None)
            self._sessions.close(held.session)
            raise
        return Granted(held.token, since, held.ticket.terms.lease)

    async def _granted(self, name: str, ticket: Ticket, session: Session, since: float, until: float) -> Granted:
        """Take the token of the lock that the session has; a failure closes the session, which frees the lock."""
        lease = ticket.terms.lease
        first = () if session.ttl == lease else (self._sessions.set_idle_timeout(session, lease),)
        try:
            takes = self._entry(advisory.GRANT, name, ticket, session.hint)
            while not (found := (await self._sessions.ask(session, until, *first, takes))[-1]):
                await self._sessions.ask(session, until, self._add_name(name))
            schema.check_version(found[0][1])
        except BaseException:
            self._sessions.close(session)
            raise
        held = Held(name, ticket, session, int(found[0][0]))
        self._holds[ticket.id] = held
        self._watch.begin()
        return Granted(held.token, since, lease)

    async def _store_waiters(self, waiters: Sequence[Waiter[Session]], until: float) -> list[Owner | None]:
        names = sorted({waiter.name for waiter in waiters})
        looks = [self._holder(name) for name in names]
        adds = [self._add_name(name) for name in names]
        adds += [Statement(advisory.STALE, self._key_of_rows(name)) for name in names]
        parked = [self._wait_queues.parked(waiter) for waiter in waiters]
        shows = [
            self._entry(advisory.QUEUE, waiter.name, waiter.ticket, "" if session is None else session.hint)
            for waiter, session in zip(waiters, parked, strict=True)
        ]
        fair_waiters = [
            FairWaiter(waiter, session, self._queue_state(waiter.name, session))
            for waiter, session in zip(waiters, parked, strict=True)
            if session is not None and waiter.ticket.terms.mode.fair
        ]
        asks = [one.look for one in fair_waiters]
        answers = await self._transact(lambda tx: tx.commit(*looks, *adds, *shows, *asks), until)
        await self._wait_until_queued(fair_waiters, answers[len(answers) - len(asks) :], until)
        holders = {name: Owner.parse(held[0][0]) for name, held in zip(names, answers, strict=False) if held}
        return [holders.get(waiter.name) for waiter in waiters]

    async def _wait_until_queued(
        self, fair_waiters: list[FairWaiter], found: Sequence[Sequence[Row]], until: float
    ) -> None:
        """Wait until all are in the server's queue: a fair waiter must not be told to wait before it has a place."""
        pause = FIRST_PAUSE
        while True:
            missing = [one for one, rows in zip(fair_waiters, found, strict=True) if not rows]
            fair_waiters = [one for one in missing if self._wait_queues.parked(one.waiter) is one.session]
            if not fair_waiters:
                return
            if self._runtime.now() + pause > until:
                raise no_answer(self._postgres.where, "entering its queue took too long", unknown=False)
            await self._runtime.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            asks = [one.look for one in fair_waiters]
            found = await self._transact(lambda tx, asks=asks: tx.commit(*asks), until)  # type: ignore[misc]

    async def _release(self, held: Held, until: float) -> bool:
        session, ticket = held.session, held.ticket
        drop = statements.remove_entry(self._key_of_rows(held.name), ticket.id)
        if session.dead:
            self._sessions.close(session)
            await self._sessions.forget(held.name, session.backend, until, drop)
            return False
        unlock = Statement(advisory.UNLOCK, (self._sessions.key(held.name),))
        try:
            _, (freed,) = await self._sessions.ask(session, until, drop, unlock)
        except BaseException as error:
            self._sessions.close(session)  # this frees the lock
            if isinstance(error, LeaseholdError) and session.failed is not None:
                return False  # the session had ended before
            raise
        self._sessions.keep(session)
        return bool(freed[0])

    async def _break(self, name: str, ticket: Ticket, until: float) -> bool:
        """End the session of another client, which frees the lock; the token increases."""
        key = self._key_of_rows(name)

        async def work(tx: Transaction) -> bool:
            (found,) = await tx.ask(statements.hint_of(key, ticket.id))
            if not found or not found[0][0]:
                return False  # it does not exist, or waits without a session
            ends = Statement(advisory.END, (int(found[0][0].removeprefix("pid:")), self._sessions.key(name)))
            removes = statements.remove_entry(key, ticket.id)
            ended, *_ = await tx.commit(ends, Statement(advisory.RAISE, key), removes)
            return bool(ended)

        return await self._transact(work, until)

    async def _renew_entries(self, tickets: Sequence[str], until: float) -> None:
        renews = statements.renew_entries(CLOCK, tickets)
        await self._transact(lambda tx: tx.commit(renews), until, reserved=True)

    async def _has_lock(self, name: str, session: Session, until: float) -> bool:
        asks = self._queue_state(name, session)
        (found,) = await self._transact(lambda tx: tx.commit(asks), until)
        return bool(found and found[0][0])

    def _queue_state(self, name: str, session: Session) -> Statement:
        return Statement(advisory.QUEUED, (session.backend, self._sessions.key(name)))

    def _holder(self, name: str) -> Statement:
        return statements.holder(self._key_of_rows(name))

    def _key_of_rows(self, name: str) -> Key:
        return self._rows, name.encode()

    def _entry(self, text: str, name: str, ticket: Ticket, hint: str) -> Statement:
        terms = ticket.terms
        shown = (ns(terms.lease), str(terms.owner), terms.meta, hint)
        return Statement(text, (*self._key_of_rows(name), ticket.id, *shown))

    def _add_name(self, name: str) -> Statement:
        return Statement(self._dialect.add_name, self._key_of_rows(name))

"""Stores of ``mode=session``: the connection itself has the lock, which is free as soon as that connection ends.

Theory of operation
-------------------
A holder has a session of its own. The waiters of a client for one name share one session, which waits in the server's
queue (see `_sql.session.wait_queue`). There is no polling. A job reads the server's answer, so that neither a thread
nor an event loop is blocked by the wait.

An attempt enters the local queue. When its turn has come and its session has the lock, it takes the next token from the
row of the name. Else the waiter is stored, for people to see.

The server is set to end each session that is silent for the length of the lease, and a renewal is a request on that
session. So a holder that stalls, or whose host vanishes, loses the lock at the end of its lease. Between two requests a
job looks whether the server has closed the connection of a hold: that is local, takes microseconds and sends nothing.

Rows of this mode and lease rows are separate. They decide nothing: they keep the token, and show the holder and the
waiters to people. The entry of a holder counts only while the server says that its session has the lock, that of a
waiter until its expiry, which renewals move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

from leasehold._model import RESPONSE_TIMEOUT, Granted, Owner, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._runtimes.base import Job
from leasehold.errors import StoreUnavailable
from leasehold.store_api import LossCallback
from leasehold.stores._common.answers import answered
from leasehold.stores._sql import rows, tables
from leasehold.stores._sql.queue_snapshot import Key
from leasehold.stores._sql.session import statements
from leasehold.stores._sql.session.sessions import Session, Sessions
from leasehold.stores._sql.session.wait_queue import WaitQueues
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.session.waiter_table import WaiterTable
from leasehold.stores._sql.store import RowStore
from leasehold.stores._sql.transport import Permit, Row, Semaphore, Statement, Transaction

S = TypeVar("S", bound=Session)

WATCH_EVERY = 0.025
"""Seconds between two checks of the connections of holds."""


class SessionRowStore(RowStore, ABC, Generic[S]):
    """What these stores share. Cells, tables and diagnosis are those of lease rows."""

    renewals_at_once: ClassVar[int]
    """Holds that are renewed at the same time, each on its connection."""

    _on_loss: LossCallback | None = None

    def _begin(self, row_space: bytes, tries: int) -> None:
        """Begin without sessions.

        Args:
            row_space: the namespace of the rows of this mode. It is not UTF-8, so that of no lease row equals it.
            tries: callers that try at the same time without waiting.
        """
        self._row_space = row_space
        self._tries = tries
        self._forget_sessions()

    def _forget_sessions(self) -> None:
        self._sessions: Sessions[S] = self._no_sessions()
        self._wait_queues: WaitQueues[S] = WaitQueues(self._runtime, self._sessions)
        self._waiter_table: WaiterTable[S] = WaiterTable(self._runtime, self._store_waiters, self._remove_left)
        self._once = Semaphore(self._runtime, self._tries)
        self._watch_mutex = self._runtime.mutex()
        self._watch: Job | None = None

    # --- the lock ----------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        until = self._runtime.now() + within
        held = self._sessions.get(ticket.id)
        if held is not None and (granted := await self._repeat(held, until)) is not None:
            return granted
        if not join:
            return await self._try_once(name, ticket, until)
        waiter = self._wait_queues.enter(name, ticket)
        try:
            session = await self._session(waiter, until)
            answer = await (self._queued(waiter, until) if session is None else self._take(waiter, session, until))
        except BaseException as error:
            waiter.taking = False  # it may have been interrupted before `_take`
            if isinstance(error, StoreUnavailable) and not waiter.answered and not error.unknown:
                await self._wait_queues.leave(waiter, until)  # its client will not release it
            raise
        waiter.answered = True
        return answer

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        await self._wait_queues.wait(ticket.id, timeout)
        return None  # the next attempt finds the lock, and takes its token

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        until = self._runtime.now() + within
        waiter = self._wait_queues.get(ticket.id)
        if waiter is not None:
            await self._wait_queues.leave(waiter, until)
        session = self._sessions.take(ticket.id)
        if session is not None:
            return await self._release(session, until)
        if waiter is None:
            return await self._release_other(name, ticket.id, reason, until)
        await self._forget(waiter, until)
        return True

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until = self._runtime.now() + within
        results: list[RenewalResult | BaseException] = []
        for start in range(0, len(tickets), self.renewals_at_once):
            some = [self._renew_one(ticket, until) for _, ticket in tickets[start : start + self.renewals_at_once]]
            results += await self._runtime.gather(*some)
        await self._renew_waiters([ticket.id for _, ticket in tickets], until)
        return answered(results)

    async def _renew_one(self, ticket: Ticket, until: float) -> RenewalResult | StoreUnavailable:
        session = self._sessions.get(ticket.id)
        if session is not None:
            return await self._check(session, until)
        return RenewalResult.GONE if self._wait_queues.get(ticket.id) is None else RenewalResult.QUEUED

    async def _renew_waiters(self, tickets: list[str], until: float) -> None:
        """Record that the clients of these tickets are alive, and renew the rows of their waiters."""
        waiters = self._wait_queues.renewed(tickets)
        if not waiters:
            return
        renews = statements.renew_entries(self._dialect.now, [waiter.ticket.id for waiter in waiters])
        with suppress(StoreUnavailable):  # the rows decide nothing
            await self._write([renews], until, reserved=True)

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        async def work(tx: Transaction) -> tuple[float, list[Row]]:
            now, names = await self._names(tx, self._row_space, prefix, exact=exact)
            return now, await self._living(tx, names, now)

        now, found = await self._transact(work, self._runtime.now() + within)
        return [view for view in rows.views_of(found, now) if view.holders or view.waiters]

    # --- its own life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections: the server frees their locks."""
        self._wait_queues.close()
        self._sessions.close_all()
        watch = self._watch
        if watch is not None:
            await watch.join(1.0)
        await super().close()

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        super().after_fork()
        self._forget_sessions()

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` from now on for each hold whose connection ends."""
        self._on_loss = callback

    async def _watch_connections(self) -> None:
        """Report holds whose connections end between two requests. It runs while there are holds."""
        while True:
            with self._watch_mutex:  # else a grant that comes now takes this job for one that goes on
                if not self._sessions.any_held():
                    self._watch = None
                    return
            await self._runtime.sleep(WATCH_EVERY)
            for ticket in await self._sessions.closed_connections():
                if self._on_loss is not None:
                    self._on_loss(RenewalResult.GONE, (ticket,))

    # --- steps of an attempt -----------------------------------------------------------------------------------

    async def _try_once(self, name: str, ticket: Ticket, until: float) -> Granted | Wait:
        """Try without a place in the queue; not while the queue of this client has waiters."""
        held: Sequence[Row]
        asks = statements.holder(self._row_key(name))
        if self._wait_queues.has_waiters(name):
            (held,) = await self._write([asks], until)
            return Wait(None, ticket.terms.lease, _owner(held))
        once, mine = self._once, list[Permit]()
        try:
            if not await once.take(until, mine):
                raise self._sessions.not_sent("all connections of this client are in use")
            session, has = await self._sessions.try_lock(name, ticket, until)
            if not has:
                (held,) = await self._sessions.leave(session, until, asks)
                return Wait(None, ticket.terms.lease, _owner(held))
        finally:
            mine.clear()
            once.notify()
        return await self._granted(session, until)

    async def _session(self, waiter: Waiter[S], until: float) -> S | None:
        """Return the session with the lock, if the turn has come."""
        return await self._wait_queues.session_for(waiter, until)

    async def _take(self, waiter: Waiter[S], session: S, until: float) -> Granted:
        """Let the first waiter take the token of the lock that its session has."""
        session.ticket = waiter.ticket
        try:
            granted = await self._granted(session, until)
            self._wait_queues.granted(waiter)
        except BaseException:
            self._wait_queues.session_lost(waiter)  # or is that of a hold: not the waiter's any more
            raise
        return granted

    async def _granted(self, session: S, until: float) -> Granted:
        """Take the token of the lock that a session has; a failure closes the session, which frees the lock."""
        since = self._runtime.now()
        try:
            token, version = await self._take_token(session, until)
            tables.check(version)
        except BaseException:
            self._sessions.lost(session)
            raise
        with self._watch_mutex:
            self._sessions.hold(session, token)
            if self._watch is None or not self._watch.alive():
                self._watch = self._runtime.spawn_loop(self._watch_connections, "leasehold-watch")
        return Granted(token, since, session.lease)

    async def _queued(self, waiter: Waiter[S], until: float) -> Wait:
        """Store the waiter for people to see, again each half lease: this also detects a silent server."""
        now, lease = self._runtime.now(), waiter.ticket.terms.lease
        if waiter.stored_at is None or waiter.stored_at + lease / 2 < now:
            waiter.stored_at = now  # before it is stored: it may be, whatever the answer
            await self._waiter_table.show(waiter, until)
        return Wait(None, lease, waiter.held_by)

    # --- rows --------------------------------------------------------------------------------------------------

    async def _store_waiters(self, waiters: Sequence[Waiter[S]], until: float) -> list[Owner | None]:
        """Store waiters; return the holder of each one's name."""
        return (await self._stored(waiters, until))[0]

    async def _stored(
        self, waiters: Sequence[Waiter[S]], until: float, *asks: Statement
    ) -> tuple[list[Owner | None], list[list[Row]]]:
        """Store waiters and run ``asks`` in the same transaction; return the holders, and the rows of ``asks``."""
        names = sorted({waiter.name for waiter in waiters})
        keys = [self._row_key(name) for name in names]
        writes = [statements.holder(key) for key in keys]
        for key in keys:
            writes += [Statement(self._dialect.add_name, key), self._remove_stale(key)]
        for waiter in waiters:
            writes += self._rows_of(waiter)
        answers = await self._write([*writes, *asks], until)
        holders = {name: _owner(held) for name, held in zip(names, answers, strict=False)}
        return [holders[waiter.name] for waiter in waiters], answers[len(writes) :]

    async def _forget(self, waiter: Waiter[S], until: float) -> None:
        """Remove the row of a waiter that has left, if the server may have it."""
        if waiter.stored:
            await self._write(self._removals([waiter]), until)

    async def _remove_left(self, waiters: Sequence[Waiter[S]], until: float) -> None:
        with suppress(StoreUnavailable):  # then they stay until they expire
            await self._write(self._removals(waiters), until)

    def _removals(self, waiters: Sequence[Waiter[S]]) -> list[Statement]:
        return [statements.remove_entry(self._row_key(each.name), each.ticket.id) for each in waiters]

    def _row_key(self, name: str) -> Key:
        return self._row_space, name.encode()

    # --- what each server does in its own way ------------------------------------------------------------------

    @abstractmethod
    def _no_sessions(self) -> Sessions[S]:
        """Return the sessions of a client that has none yet."""

    @abstractmethod
    async def _repeat(self, session: S, until: float) -> Granted | None:
        """Answer a repeated attempt of a ticket that holds: it is the same hold. None: it must try anew."""

    @abstractmethod
    async def _check(self, session: S, until: float) -> RenewalResult | StoreUnavailable:
        """Renew a hold on its connection; return the error if that is unknown."""

    @abstractmethod
    async def _take_token(self, session: S, until: float) -> tuple[int, int | None]:
        """Raise the token of the lock, and store the holder; return the token and `leasehold_meta.version`, if any."""

    @abstractmethod
    async def _release(self, session: S, until: float) -> bool:
        """Release the lock of a session that held; return whether it still did."""

    @abstractmethod
    async def _release_other(self, name: str, ticket: str, reason: ReleaseReason, until: float) -> bool:
        """Release a ticket that neither holds nor waits here: that of another client, when it is forced."""

    @abstractmethod
    async def _living(self, tx: Transaction, names: Statement, now: float) -> list[Row]:
        """Return the rows of ``names`` whose sessions have, or await, their locks; with an expiry after ``now``."""

    @abstractmethod
    def _remove_stale(self, key: Key) -> Statement:
        """Return what removes waiters that were not renewed for two leases."""

    @abstractmethod
    def _rows_of(self, waiter: Waiter[S]) -> Sequence[Statement]:
        """Return what stores a waiter, or renews its row."""


def _owner(held: Sequence[Row]) -> Owner | None:
    return Owner.parse(held[0][0]) if held else None

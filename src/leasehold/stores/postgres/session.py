"""``mode=session``: advisory locks, each held by a connection of its own. See `_sql.session.store` for the theory.

Before PostgreSQL 14 the server ends no silent session: only TCP's keep-alive ends one whose host has vanished.

An entry with a session counts only while the server's own list of locks has that session. An entry without one counts
until its expiry.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import Capabilities, Granted, Owner, ReleaseReason, RenewalResult, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores._sql import rows
from leasehold.stores._sql.queue_snapshot import Key, ns
from leasehold.stores._sql.rows import EXPIRES, HINT, TICKET
from leasehold.stores._sql.session import statements
from leasehold.stores._sql.session.store import SessionRowStore
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.transport import Refused, Row, Statement, Transaction
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.connection.settings import Settings
from leasehold.stores.postgres.sessions import Session, Sessions
from leasehold.stores.postgres.store import MakeTransport, PostgresStore

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1
"""Seconds between two checks whether a session is in the server's queue: at first, and at most."""

SHOWN = 10**6
"""Nanoseconds for which an entry is shown that has expired, while its session has the lock."""


class SessionStore(SessionRowStore[Session], PostgresStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=False, permits=False, lock_delay=False, crash_bound="at once when the connection dies, else the lease"
    )

    renewals_at_once = 10_000  # all: a server has fewer connections

    def __init__(
        self, runtime: Runtime, settings: Settings, namespace: str, transport: MakeTransport | None = None
    ) -> None:
        super().__init__(runtime, settings, namespace, transport)
        self._namespace = namespace
        self._begin(self._space + advisory.SPACE, self._postgres.settings.pool)

    def _no_sessions(self) -> Sessions:
        return Sessions(self._runtime, self._postgres, self._lock_key)

    # --- holds -------------------------------------------------------------------------------------------------

    async def _repeat(self, session: Session, until: float) -> Granted:
        since = self._runtime.now()
        try:
            if session.failed is not None:
                raise session.failed
            await self._renew_entry(session, until)
        except BaseException:
            self._sessions.lost(session)
            raise
        return Granted(session.token, since, session.lease)

    async def _check(self, session: Session, until: float) -> RenewalResult | StoreUnavailable:
        if session.dead:
            return RenewalResult.GONE
        try:
            await self._renew_entry(session, until)
        except StoreUnavailable as error:
            return RenewalResult.GONE if session.dead else error
        return RenewalResult.HELD

    async def _renew_entry(self, session: Session, until: float) -> None:
        renews = statements.renew_entries(self._dialect.now, [session.ticket.id])
        try:
            await self._sessions.ask(session, until, renews)
        except Refused:
            if session.dead:
                raise
            # else the session has answered, so it has its lock: rows decide nothing

    async def _take_token(self, session: Session, until: float) -> tuple[int, int | None]:
        first = () if session.silence == session.lease else (session.limit_silence(),)
        takes = self._entry(advisory.GRANT, session.name, session.ticket, session.hint)
        adds = Statement(self._dialect.add_name, self._row_key(session.name)), Statement(self._dialect.clock)
        while not (found := (await self._sessions.ask(session, until, *first, takes))[-1]):
            rows.clock_of((await self._sessions.ask(session, until, *adds))[-1])
        return int(found[0][0]), found[0][1]

    async def _release(self, session: Session, until: float) -> bool:
        drop = statements.remove_entry(self._row_key(session.name), session.ticket.id)
        if session.dead:
            self._sessions.close(session)
            await self._write([drop, session.end], until)
            return False
        try:
            _, (freed,) = await self._sessions.leave(session, until, drop, session.key.about(advisory.UNLOCK))
        except BaseException as error:
            self._sessions.close(session)  # this frees the lock
            if isinstance(error, LeaseholdError) and session.failed is not None:
                return False  # the session had ended before
            raise
        await self._sweep(until)
        return bool(freed[0])

    async def _release_other(self, name: str, ticket: str, reason: ReleaseReason, until: float) -> bool:
        """End the session of another client, which frees the lock; the token increases."""
        if reason is not ReleaseReason.BREAK:
            return False
        key = self._row_key(name)

        async def work(tx: Transaction) -> bool:
            (found,) = await tx.ask(statements.hint_of(key, ticket))
            if not found or not found[0][0]:
                return False  # it does not exist, or waits without a session
            backend = int(found[0][0].removeprefix("pid:"))
            ends = self._lock_key(name).about(advisory.END, backend)
            removes = statements.remove_entry(key, ticket)
            ended, *_ = await tx.commit(ends, Statement(advisory.RAISE, key), removes)
            return bool(ended)

        return await self._transact(work, until)

    # --- waiters -----------------------------------------------------------------------------------------------

    async def _session(self, waiter: Waiter[Session], until: float) -> Session | None:
        """Return the session with the lock. Its answer may be on the way, so ask on another connection, too."""
        session = await self._wait_queues.session_for(waiter, until)
        if session is not None or not waiter.answered:
            return session
        parked = self._wait_queues.parked(waiter)
        if parked is None:
            return None
        (found,) = await self._write([parked.queue_state], until)
        return await self._wait_queues.wait_for_session(waiter, until) if found and found[0][0] else None

    async def _store_waiters(self, waiters: Sequence[Waiter[Session]], until: float) -> list[Owner | None]:
        """Store waiters. A fair waiter gets no `Wait` before its session is in the server's queue."""
        fair = [
            (waiter, session)
            for waiter in waiters
            if waiter.ticket.terms.mode.fair and (session := self._wait_queues.parked(waiter)) is not None
        ]
        holders, found = await self._stored(waiters, until, *(session.queue_state for _, session in fair))
        pause = FIRST_PAUSE
        while True:
            missing = [one for one, state in zip(fair, found, strict=True) if not state]
            fair = [(waiter, session) for waiter, session in missing if self._wait_queues.parked(waiter) is session]
            if not fair:
                return holders
            if self._runtime.now() + pause > until:
                raise self._sessions.not_sent("entering its queue took too long")
            await self._runtime.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            found = await self._write([session.queue_state for _, session in fair], until)

    # --- rows --------------------------------------------------------------------------------------------------

    async def _living(self, tx: Transaction, names: Statement, now: float) -> list[Row]:
        found, locks = await tx.commit(names, Statement(advisory.LOCKS))
        there = {(f"pid:{pid}", advisory.Key(key, pair == 1)) for pid, key, pair in locks}

        def lives(row: Row) -> bool:
            hint: str = row[HINT]
            if not hint:
                return bool(row[EXPIRES] > ns(now))
            return (hint, self._lock_key(row[1].decode("utf-8", "surrogatepass"))) in there

        living = [row for row in found if row[TICKET] is not None and lives(row)]
        return [(*row[:EXPIRES], max(row[EXPIRES], ns(now) + SHOWN), *row[EXPIRES + 1 :]) for row in living]

    def _lock_key(self, name: str) -> advisory.Key:
        """Return the key of a name's advisory lock."""
        return advisory.Key(advisory.key_of(self._namespace, name))

    def _remove_stale(self, key: Key) -> Statement:
        return Statement(advisory.STALE, key)

    def _rows_of(self, waiter: Waiter[Session]) -> Sequence[Statement]:
        session = self._wait_queues.parked(waiter)
        hint = "" if session is None else session.hint
        return [self._entry(advisory.QUEUE, waiter.name, waiter.ticket, hint)]

    def _entry(self, text: str, name: str, ticket: Ticket, hint: str) -> Statement:
        terms = ticket.terms
        shown = (ns(terms.lease), str(terms.owner), terms.meta, hint)
        return Statement(text, (*self._row_key(name), ticket.id, *shown))

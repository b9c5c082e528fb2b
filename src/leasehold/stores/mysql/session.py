"""``mode=session``: the server's own locks, by GET_LOCK, each held by a connection of its own.

Theory of operation
-------------------
See `_sql.session.store` for what all such stores do. The server frees such a lock when its session ends, for whatever
reason: it notices a crashed holder as soon as the connection closes. So the lock is no lease, and there is no timed
promise. A connection that is cut on the server's side alone shows nothing here before the next renewal, and another
client may have the lock by then. A guard that checks tokens refuses late writes.

* ``GET_LOCK`` returns 1 for acquired, 0 for taken, NULL for an error. A waiting job calls it with a time limit, in
  slices; the server answers when the lock is free.
* The token is raised in the row of the name while the lock is held, so it increases from holder to holder.
* `renew` asks on the connection whether it still has the lock, which also keeps the session alive.
* Each of these asks whether the server still takes writes: after a switch-over, its locks do not exclude clients of
  the new primary. Then nothing is granted, and a hold is in doubt.
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

from leasehold._model import RESPONSE_TIMEOUT, Capabilities, Granted, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._runtimes.base import Runtime
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.stores._sql.queue_snapshot import Key, ns
from leasehold.stores._sql.rows import EXPIRES, HINT, PLACE, TICKET
from leasehold.stores._sql.session import statements
from leasehold.stores._sql.session.store import SessionRowStore
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.transport import Outcome, Refused, Row, Statement, Transaction
from leasehold.stores.mysql import session_statements as sql
from leasehold.stores.mysql.connection.base import Rows, is_read_only
from leasehold.stores.mysql.connection.handshake import ASK_WRITABLE
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.connection.transport import BEGIN, COMMIT, ROLLBACK, MySQLTransport, limits
from leasehold.stores.mysql.sessions import BrokenSessions, Session, Sessions
from leasehold.stores.mysql.store import MySQLStore

MAX_TRIES = 16
"""Connections that try at the same time for callers that do not wait."""

LONGEST_NAMESPACE = 512 - len(sql.MARK)
"""In bytes: rows of this mode have the mark in front of it, in a column of 512 bytes."""

OTHER_MODE = "with mode=session; use another name, or the same mode everywhere"


class MySQLSessionStore(SessionRowStore[Session], MySQLStore):
    """See `leasehold.store_api.Store` for what each method promises, and above for what is not promised."""

    capabilities = Capabilities(
        fair=False,
        lock_delay=False,
        hands_over=False,
        shortest=1.0,
        expiry_delay=1.0,
        crash_bound="within a second; cut off, within the lease + 1 s",
    )

    renewals_at_once = 32

    def __init__(
        self, runtime: Runtime, settings: Settings, namespace: str, transport: MySQLTransport | None = None
    ) -> None:
        if (size := len(namespace.encode())) > LONGEST_NAMESPACE:
            words = f"with mode=session a namespace has at most {LONGEST_NAMESPACE} bytes, this one has {size}"
            raise ValueError(f"{words}; use a hash of it")
        super().__init__(runtime, settings, namespace, transport)
        self._begin(sql.MARK + self._space, MAX_TRIES)

    def _no_sessions(self) -> Sessions:
        self._broken = BrokenSessions(self._runtime, self.mysql)
        return Sessions(self._runtime, self.mysql, self._lock, self._broken)

    # --- holds -------------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        until = self._runtime.now() + within
        try:
            return await self._try_acquire(name, ticket, join, until)
        except Refused as error:
            if not is_read_only(error):
                raise
        return await self._try_acquire(name, ticket, join, until)  # on a new connection, to the new primary

    async def _try_acquire(self, name: str, ticket: Ticket, join: bool, until: float) -> Granted | Wait:
        await self._broken.end(ticket.id, until)
        return await super().try_acquire(name, ticket, join=join, within=until - self._runtime.now())

    async def _repeat(self, session: Session, until: float) -> Granted | None:
        since = self._runtime.now()
        result = await self._check(session, until)
        if isinstance(result, Refused) and is_read_only(result):
            self._sessions.lost(session)  # its lock excludes nobody on the new primary
        return Granted(session.token, since, session.lease) if result is RenewalResult.HELD else None

    async def _check(self, session: Session, until: float) -> RenewalResult | StoreUnavailable:
        """Ask whether the session has the lock; if not, close it."""
        try:
            asks = (session.ttl, sql.has_lock(session.lock), ASK_WRITABLE)
            answers = await self._sessions.ask(session, until, *asks)
        except StoreUnavailable as error:
            return RenewalResult.GONE if self._sessions.get(session.ticket.id) is not session else error
        if answers[-2][0][0] != 1:
            self._sessions.lost(session)
            return RenewalResult.GONE
        return await self.mysql.demoted(answers[-1]) or RenewalResult.HELD

    async def _take_token(self, session: Session, until: float) -> tuple[int, int | None]:
        key, leased = self._row_key(session.name), sql.used_by_leases(self._key(session.name))
        writes = (sql.raise_token(key), *sql.store_holder(key, session.ticket, session.number))
        leases, *_, tokens = await self._transact_on(session, until, leased, *writes, sql.token(key))
        if leases:
            name = session.name
            raise NameInUse(f"{name!r} is in use by lease rows, and cannot be used {OTHER_MODE}", name=name)
        token, version = tokens[0] if tokens else (0, None)
        return int(token), version

    async def _transact_on(self, session: Session, until: float, *statements: Statement) -> Sequence[Rows]:
        """Run statements as one transaction on the session, again after a conflict; return the rows of each.

        Raises:
            StoreUnavailable: as when the server takes no writes any more. An administrator's were made even so.
        """
        while True:
            begin = (limits(max(until - self._runtime.now(), 0.001)), BEGIN, ASK_WRITABLE)
            try:
                answers = await self._sessions.ask(session, until, *begin, *statements, COMMIT, session.ttl)
            except Refused as error:
                await self._sessions.ask(session, until, ROLLBACK, session.ttl)
                if error.outcome is not Outcome.AGAIN or self._runtime.now() >= until:
                    raise
            else:
                if (demoted := await self.mysql.demoted(answers[len(begin) - 1])) is not None:
                    raise demoted
                return answers[len(begin) : -2]

    async def _release(self, session: Session, until: float) -> bool:
        drop = statements.remove_entry(self._row_key(session.name), session.ticket.id)
        try:
            if await self._sessions.has_ended(session, until):  # and the server freed the lock, before this release
                return False
            _, (freed,) = await self._sessions.leave(session, until, drop, sql.release_lock(session.lock))
        except BaseException:
            if not session.returned:  # else its connection may belong to another hold
                self._broken.remember(session)  # the next attempt ends the session
            if not session.closed:
                self._sessions.close(session)
            raise
        self._broken.forget(session.ticket.id)
        await self._sweep(until)
        return bool(freed[0] == 1)

    async def _release_other(self, name: str, ticket: str, reason: ReleaseReason, until: float) -> bool:
        """End a session of the ticket that broke here, or has the lock in another client."""
        ended = await self._broken.end(ticket, until)
        if ended is None and not (ended := await self._end_other(name, ticket, until)):
            return False
        key = self._row_key(name)
        raises = [sql.raise_token(key)] if reason is ReleaseReason.BREAK else []
        await self._write([statements.remove_entry(key, ticket), *raises], until)
        return ended

    async def _end_other(self, name: str, ticket: str, until: float) -> bool:
        """End the session of a ticket of another client, if that session has the lock."""
        hint = statements.hint_of(self._row_key(name), ticket)
        (found,) = await self._write([hint], until)
        if not found or found[0][1] != 0:
            return False
        return await self._broken.kill(self._lock(name.encode()), until, int(found[0][0]))

    # --- rows --------------------------------------------------------------------------------------------------

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        """Show full leases: the expiry of a row says only when the row may be dropped."""
        return [_view(view) for view in await super().inspect(prefix, exact=exact, within=within)]

    async def _living(self, tx: Transaction, names: Statement, now: float) -> list[Row]:
        (found,) = await tx.ask(names)
        in_use = sorted({bytes(row[1]) for row in found if row[TICKET] is not None})
        if not in_use:
            return []
        (used,) = await tx.commit(sql.lock_holders([self._lock(name) for name in in_use]))
        holders = dict(zip(in_use, used[0], strict=True))

        def lives(row: Row) -> bool:
            return bool(holders[bytes(row[1])] == int(row[HINT]) if row[PLACE] == 0 else row[EXPIRES] > ns(now))

        return [row for row in found if row[TICKET] is not None and lives(row)]

    async def _forget(self, waiter: Waiter[Session], until: float) -> None:
        await self._broken.end(waiter.ticket.id, until)
        await super()._forget(waiter, until)

    def _remove_stale(self, key: Key) -> Statement:
        return sql.remove_stale(key)

    def _rows_of(self, waiter: Waiter[Session]) -> Sequence[Statement]:
        return sql.store_waiter(self._row_key(waiter.name), waiter.ticket)

    def _lock(self, name: bytes) -> str:
        """Return the server's name of a name's lock."""
        return sql.lock_name(self.mysql.database, (self._space, name))


def _view(view: View) -> View:
    holders = tuple(replace(entry, expires=entry.ticket.terms.lease) for entry in view.holders)
    waiters = tuple(replace(entry, expires=entry.ticket.terms.lease) for entry in view.waiters)
    return replace(view, holders=holders, waiters=waiters)

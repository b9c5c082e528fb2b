"""The sessions of ``mode=session``: each has a lock of the server, or waits for one, until its connection ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.session import sessions
from leasehold.stores._sql.transport import Outcome, Refused, Row, Semaphore, Statement, Transaction
from leasehold.stores.mysql import session_statements as sql
from leasehold.stores.mysql.connection.base import (
    NO_SUCH_SESSION,
    Connection,
    NoAnswer,
    Refusal,
    Rows,
    is_read_only,
    joined,
    no_answer,
    refused,
)
from leasehold.stores.mysql.connection.handshake import ASK_WRITABLE
from leasehold.stores.mysql.connection.transport import RESTORE_TIMEOUT, MySQLTransport

SLICE = 5.0
"""Seconds for which the server waits for a lock in one request, at most."""

LATE = 1.0
"""Seconds by which its answer may be late."""

NO_LOCK = "GET_LOCK answered NULL: an operator ended the wait, or the server is out of memory; look at its log"

MAX_BROKEN = 1000
"""Broken sessions that are remembered; the server ends forgotten ones by itself, after a lease of silence."""


@dataclass(eq=False, slots=True, kw_only=True)
class Session(sessions.Session):
    """A connection that has a lock, or tries to get it.

    Attributes:
        lock: the name of its lock on the server.
        closed: whether its connection is closed, which frees the lock.
    """

    lock: str
    connection: Connection
    closed: bool = False

    @property
    def number(self) -> int:
        """The server's number of the connection."""
        return self.connection.greeting.session

    @property
    def lease(self) -> float:
        """The lease, rounded up to whole seconds, which the server counts."""
        return float(math.ceil(self.ticket.terms.lease))

    @property
    def ttl(self) -> Statement:
        """The statement that sets after how much silence the server ends the session."""
        return sql.ttl(int(self.lease))


class BrokenSessions:
    """Sessions whose connections broke, by ticket: the server may not know, so another connection tells it.

    A server that was restarted, or another one after a failover, gives their numbers to other connections. So a session
    is known by a lock that it alone has, its marker.
    """

    def __init__(self, runtime: Runtime, transport: MySQLTransport) -> None:
        self._runtime = runtime
        self._transport = transport
        self._markers: dict[str, str] = {}

    def remember(self, session: Session) -> None:
        """Remember that a request to end a session must be sent to the server."""
        self._markers[session.ticket.id] = session.connection.marker
        while len(self._markers) > MAX_BROKEN:
            del self._markers[next(iter(self._markers))]

    def forget(self, ticket: str) -> None:
        """Forget that a session of the ticket broke."""
        self._markers.pop(ticket, None)

    async def end(self, ticket: str, until: float) -> bool | None:
        """Let the server end a broken session of the ticket; return whether it existed, None if none broke.

        A session whose first request arrives after this is not found. The server ends it when it sees that its
        connection is closed, at the latest after a lease of silence.
        """
        marker = self._markers.get(ticket)
        if marker is None:
            return None
        ended = await self.kill(marker, until)
        self.forget(ticket)
        return ended

    async def kill(self, lock: str, until: float, number: int | None = None) -> bool:
        """Let the server end the session that has a lock, if that is ``number``; return whether it existed."""

        async def work(tx: Transaction) -> bool:
            (((found,),),) = await tx.ask(sql.lock_holders([lock]))
            if found is None or number not in (None, int(found)):
                return False
            await tx.ask(sql.kill(int(found)))
            return True

        try:
            return await self._transport.transact(work, within=max(until - self._runtime.now(), 0.001))
        except Refused as error:
            if error.code != str(NO_SUCH_SESSION):
                raise
            return False


class Sessions(sessions.Sessions[Session]):
    """Those of one client."""

    def __init__(
        self, runtime: Runtime, transport: MySQLTransport, lock_of: Callable[[bytes], str], broken: BrokenSessions
    ) -> None:
        super().__init__(runtime)
        self._transport = transport
        self._lock_of = lock_of
        self._broken = broken

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[Session, bool]:
        lock = self._lock_of(name.encode())
        while True:
            connection, new = await self._transport.pool.take(until)
            if connection.greeting.galera:
                self._transport.pool.drop(connection)
                raise Unsupported(
                    f"the database at {self._transport.where} is a node of a Galera cluster, whose nodes do not share "
                    "GET_LOCK: leave out mode=session"
                )
            mutex = Semaphore(self._runtime, 1)
            session = Session(name=name, ticket=ticket, mutex=mutex, lock=lock, connection=connection)
            try:
                return session, await self._has(session, await self._ask_for_lock(session, until))
            except StoreUnavailable as error:
                if not session.closed:
                    await self._transport.pool.give(session.connection)
                final = (new or isinstance(error, Refused)) and not is_read_only(error)
                if final or self._runtime.now() >= until or not session.closed:
                    raise
                await self._transport.pool.forget_idle()  # the server had closed the idle connection
            except BaseException:
                self.lost(session)
                raise

    async def wait(self, session: Session, name: str, until: Callable[[], float]) -> None:
        """Wait in the server's queue, in slices: GET_LOCK takes a number of seconds, and cannot be ended early."""
        has = False
        try:
            while (left := until() - self._runtime.now()) > 0:
                whole = max(1, int(min(left, SLICE)))
                ends = self._runtime.now() + whole + LATE
                asks = (session.ttl, sql.get_lock(session.lock, whole), ASK_WRITABLE)
                has = await self._has(session, await self.ask(session, ends, *asks))
                if has:
                    return
            raise self.not_sent("no waiter is left")
        finally:
            if not has:
                self.close(session)

    async def free(self, session: Session, name: str, until: float, *, has: bool) -> None:
        await self.leave(session, until, *([sql.release_lock(session.lock)] if has else []))

    async def end(self, session: Session, name: str, until: float) -> None:
        self.close(session)
        await self._broken.kill(session.connection.marker, until)

    def close(self, session: Session) -> None:
        if session.returned:
            return
        session.closed = True
        self._transport.pool.drop(session.connection)

    def lost(self, session: Session) -> None:
        """Close a session; the next call for its ticket lets the server end it."""
        if not session.closed and not session.returned:
            self._broken.remember(session)
            super().lost(session)

    async def _ask(self, session: Session, until: float, statements: Sequence[Statement], last: bool) -> list[Rows]:
        try:
            if session.returned:
                raise self.not_sent("the connection is closed")
            answers = await session.connection.run(joined(statements), until)
            session.returned = last
            return answers
        except Refusal as error:
            failure = refused(self._transport.where, error)
            if is_read_only(failure):
                await self._transport.pool.retire()
            raise failure from error
        except NoAnswer as error:
            self.lost(session)
            raise no_answer(self._transport.where, error, unknown=True) from error
        except BaseException:
            self.lost(session)
            raise

    async def leave(self, session: Session, until: float, *statements: Statement) -> Sequence[Sequence[Row]]:
        answers = await self.ask(session, until, *statements, RESTORE_TIMEOUT, last=True)
        await self._transport.pool.give(session.connection)
        return answers[:-1]

    def not_sent(self, why: str) -> StoreUnavailable:
        return no_answer(self._transport.where, why, unknown=False)

    async def _ask_for_lock(self, session: Session, until: float) -> Sequence[Sequence[Row]]:
        first, connection = [session.ttl], session.connection
        if not connection.marker:
            connection.marker = sql.new_marker(self._runtime.random_bytes(16))
            first.append(sql.get_lock(connection.marker, 0))
        try:
            return await self.ask(session, until, *first, sql.get_lock(session.lock, 0), ASK_WRITABLE)
        except Refused:  # it shows nothing of the statements before it: the server may have granted the lock
            self.close(session)
            raise

    async def _has(self, session: Session, answers: Sequence[Rows]) -> bool:
        """Return whether the session has the lock; on a server that is no primary any more it is closed instead."""
        got = answers[-2][0][0]
        if (demoted := await self._transport.demoted(answers[-1])) is not None:
            self.close(session)
            raise demoted
        if got is None:
            raise Refused(f"the database at {self._transport.where} refused: {NO_LOCK}", outcome=Outcome.NOT_APPLIED)
        return bool(got)

    def _notice_end(self, session: Session) -> bool:
        if session.closed or session.connection.usable():
            return False
        self.lost(session)
        return True

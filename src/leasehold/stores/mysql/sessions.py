"""The sessions of ``mode=session``: each has a lock of the server, or waits for one, until its connection ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.queue_snapshot import Key
from leasehold.stores._sql.semaphore import Semaphore
from leasehold.stores._sql.transport import Outcome, Refused, Statement, Transaction
from leasehold.stores.mysql import session_statements as sql
from leasehold.stores.mysql.connection.base import (
    NO_SUCH_SESSION,
    Connection,
    NoAnswer,
    Refusal,
    Rows,
    joined,
    no_answer,
    refused,
)
from leasehold.stores.mysql.connection.transport import BEGIN, COMMIT, RESTORE_TIMEOUT, ROLLBACK, MySQLTransport, limits

SLICE = 5.0
"""Seconds for which the server waits for a lock in one request, at most."""

LATE = 1.0
"""Seconds by which its answer may be late."""

NO_LOCK = "GET_LOCK answered NULL: an operator ended the wait, or the server is out of memory; look at its log"

MAX_BROKEN = 1000
"""Broken sessions that are remembered; the server ends forgotten ones by itself, after a lease of silence."""


@dataclass(eq=False, slots=True)
class Session:
    """A connection that has a lock, or tries to get it.

    Attributes:
        mutex: for one request at a time.
        ticket: the ticket for which it was opened, or that holds.
        token: that of the hold, if its ticket holds.
        closed: whether its connection is closed, which frees the lock.

    """

    key: Key
    lock: str
    ticket: Ticket
    connection: Connection
    mutex: Semaphore = field(repr=False)
    token: int | None = None
    closed: bool = False

    @property
    def number(self) -> int:
        """The server's number of the connection."""
        return self.connection.greeting.session

    @property
    def ttl(self) -> Statement:
        """The statement that sets after how much silence the server ends the session."""
        return sql.ttl(int(self.lease))

    @property
    def lease(self) -> float:
        """The lease, rounded up to whole seconds, which the server counts."""
        return float(math.ceil(self.ticket.terms.lease))


class Sessions:
    """See `leasehold.stores._sql.session.waiter.Sessions`. Used by many tasks or threads at once."""

    def __init__(self, runtime: Runtime, transport: MySQLTransport, space: bytes) -> None:
        self._runtime = runtime
        self._transport = transport
        self._space = space
        self._holds: dict[str, Session] = {}
        self._broken: dict[str, int] = {}  # by ticket: broken sessions of which the server may not know

    def get(self, ticket: str) -> Session | None:
        """Return the session of a ticket that holds."""
        return self._holds.get(ticket)

    def hold(self, session: Session, token: int) -> None:
        """Record that the ticket of a session holds."""
        session.token = token
        self._holds[session.ticket.id] = session

    def take(self, ticket: str) -> Session | None:
        """Remove and return the session of a ticket."""
        return self._holds.pop(ticket, None)

    def any_held(self) -> bool:
        """Return whether any ticket holds."""
        return bool(self._holds)

    async def closed_connections(self) -> list[str]:
        """Return the tickets whose connections the server has closed, as far as this end can see.

        A connection in use is skipped: what arrives is an answer, and its reader gets the error if it ends.
        """
        gone = list[str]()
        for ticket, session in list(self._holds.items()):
            if await session.mutex.take(self._runtime.now()):
                try:
                    if not session.closed and not session.connection.usable():
                        self.lost(session)
                        gone.append(ticket)
                finally:
                    session.mutex.give()
        return gone

    def forget_broken(self, ticket: str) -> None:
        """Forget that a session of the ticket broke."""
        self._broken.pop(ticket, None)

    def close_all(self) -> None:
        """Close the connections of all holds: the server frees their locks."""
        sessions, self._holds = list(self._holds.values()), {}
        for session in sessions:
            self.close(session)

    def close(self, session: Session) -> None:
        session.closed = True
        self._transport.pool.drop(session.connection, urgent=True)

    def lock(self, key: Key) -> str:
        """Return the name of a lock on the server; ``key`` is that of lease rows."""
        return sql.lock_name(self._transport.database, key)

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[Session, bool]:
        key = (sql.MARK + self._space, name.encode())
        lock = self.lock((self._space, name.encode()))
        while True:
            connection, new = await self._transport.pool.take(until, urgent=True)
            if connection.greeting.galera:
                self._transport.pool.drop(connection, urgent=True)
                raise Unsupported(
                    f"the database at {self._transport.where} is a node of a Galera cluster, whose nodes do not share "
                    "GET_LOCK: leave out mode=session"
                )
            session = Session(key, lock, ticket, connection, Semaphore(self._runtime, 1))
            try:
                return session, self._has(await self.on(session, (session.ttl, sql.get_lock(lock, 0)), until))
            except StoreUnavailable:
                if not session.closed:
                    await self._transport.pool.give(session.connection, urgent=True)
                if new or self._runtime.now() >= until or not session.closed:
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
                has = self._has(await self.on(session, (session.ttl, sql.get_lock(session.lock, whole)), ends))
                if has:
                    return
            raise no_answer(self._transport.where, "no waiter is left", unknown=False)
        finally:
            if not has:
                self.close(session)

    async def free(self, session: Session, name: str, until: float, *, has: bool) -> None:
        await self.leave(session, (*([sql.release_lock(session.lock)] if has else []), RESTORE_TIMEOUT), until)

    async def end(self, session: Session, name: str, until: float) -> None:
        self.close(session)
        await self.kill(session.number, until)

    def _has(self, answers: Sequence[Rows]) -> bool:
        got = answers[-1][0][0]
        if got is None:
            raise Refused(f"the database at {self._transport.where} refused: {NO_LOCK}", outcome=Outcome.NOT_APPLIED)
        return bool(got)

    async def on(self, session: Session, statements: Sequence[Statement], until: float) -> list[Rows]:
        """Run statements on the connection of a session; an error of the connection closes the session."""
        if not await session.mutex.take(until):
            raise no_answer(self._transport.where, "the connection of the lock is busy", unknown=False)
        try:
            return await session.connection.run(joined(statements), until)
        except Refusal as error:
            raise refused(self._transport.where, error) from error
        except NoAnswer as error:
            self.lost(session)
            raise no_answer(self._transport.where, error, unknown=True) from error
        except BaseException:
            self.lost(session)
            raise
        finally:
            session.mutex.give()

    async def transact(self, session: Session, statements: Sequence[Statement], until: float) -> list[Rows]:
        """Run statements as one transaction on the session, again after a conflict."""
        while True:
            left = max(until - self._runtime.now(), 0.001)
            try:
                return await self.on(session, (limits(left), BEGIN, *statements, COMMIT, session.ttl), until)
            except Refused as error:
                await self.on(session, (ROLLBACK, session.ttl), until)
                if error.outcome is not Outcome.AGAIN or self._runtime.now() >= until:
                    raise

    async def leave(self, session: Session, statements: Sequence[Statement], until: float) -> list[Rows]:
        """Run the last statements on a session, and return its connection to the pool."""
        answers = await self.on(session, statements, until)
        await self._transport.pool.give(session.connection, urgent=True)
        return answers

    def lost(self, session: Session) -> None:
        """Close a session; the next call for its ticket lets the server end it."""
        if not session.closed:
            if self._holds.get(session.ticket.id) is session:
                del self._holds[session.ticket.id]
            self.remember_broken(session)
            self.close(session)

    def remember_broken(self, session: Session) -> None:
        """Remember that the server must be told to end a session."""
        self._broken[session.ticket.id] = session.number
        while len(self._broken) > MAX_BROKEN:
            del self._broken[next(iter(self._broken))]

    async def end_broken(self, ticket: str, until: float) -> bool | None:
        """Let the server end a broken session of the ticket; return whether it existed, None if none broke."""
        session = self._broken.get(ticket)
        if session is None:
            return None
        ended = await self.kill(session, until)
        self._broken.pop(ticket, None)
        return ended

    async def kill(self, session: int, until: float) -> bool:
        """Let the server end a session; return whether it existed."""

        async def work(tx: Transaction) -> bool:
            await tx.ask(sql.kill(session))
            return True

        try:
            return await self._transport.transact(work, within=max(until - self._runtime.now(), 0.001))
        except Refused as error:
            if error.code != str(NO_SUCH_SESSION):
                raise
            return False

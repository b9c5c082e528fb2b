"""The sessions of ``mode=session``: each has an advisory lock, or waits for one in the server's queue.

The server ends a session that is silent for the length of a lease (from PostgreSQL 14). A session whose answer is late
or missing is closed, and its lock is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.semaphore import Semaphore
from leasehold.stores._sql.transport import Row, Statement
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.errors import Broken, ServerError, no_answer, refused
from leasehold.stores.postgres.connection.exchange import Connection


@dataclass(eq=False, slots=True)
class Session:
    """A connection that has a lock, or tries to get it.

    Attributes:
        mutex: for one batch of statements at a time.
        ttl: seconds of silence after which the server ends it.
        failed: why it cannot be used any more.

    """

    connection: Connection
    mutex: Semaphore
    ttl: float = 0.0
    failed: StoreUnavailable | None = None

    @property
    def dead(self) -> bool:
        """Whether it cannot be used any more, so that its lock is gone."""
        return not self.connection.open or self.failed is not None

    @property
    def backend(self) -> int:
        """The process id of the server's end."""
        backend: int = self.connection.facts["backend"]
        return backend

    @property
    def hint(self) -> str:
        """Its name in the rows that people see."""
        return f"pid:{self.backend}"


class Sessions:
    """Those of one client; see `leasehold.stores._sql.session.waiter.Sessions`."""

    def __init__(self, runtime: Runtime, transport: PostgresTransport, namespace: str) -> None:
        self._runtime = runtime
        self._transport = transport
        self._namespace = namespace

    def key(self, name: str) -> int:
        """Return the key of a name's lock."""
        return advisory.key_of(self._namespace, name)

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[Session, bool]:
        session = Session(await self._transport.session(until), Semaphore(self._runtime, 1))
        tries = Statement(advisory.TRY, (self.key(name),))
        ((try_lock,), _) = await self.ask(session, until, tries, self.set_idle_timeout(session, ticket.terms.lease))
        return session, bool(try_lock[0])

    def set_idle_timeout(self, session: Session, seconds: float) -> Statement:
        """Return the statement that sets after how much silence the server ends the session."""
        session.ttl = seconds
        return Statement(advisory.IDLE_END, (f"{max(int(seconds * 1000), 1)}ms",))

    async def wait(self, session: Session, name: str, until: Callable[[], float]) -> None:
        where = self._transport.where
        waits = session.connection.exchange([Statement(advisory.WAIT, (self.key(name),))])
        has = True
        try:
            while has:
                limit = until()
                try:
                    await self._transport.run(waits, limit, goes_on=True)
                    return
                except TimeoutError:
                    has = until() > limit
            raise no_answer(where, "no waiter is left", unknown=False)
        except ServerError as error:
            has = False
            raise refused(where, error) from None
        except Broken as error:
            has = False
            raise no_answer(where, error, unknown=False) from None
        except BaseException:
            has = False
            raise
        finally:
            waits.close()
            if not has:
                self.close(session)

    async def free(self, session: Session, name: str, until: float, *, has: bool) -> None:
        if has and not session.dead:
            await self.ask(session, until, Statement(advisory.UNLOCK, (self.key(name),)))
        self.keep(session)

    async def end(self, session: Session, name: str, until: float) -> None:
        backend = session.backend
        self.close(session)
        await self.forget(name, backend, until)

    async def forget(self, name: str, backend: int, until: float, *more: Statement) -> None:
        """Let the server end a session whose connection is closed: otherwise it would stay in its queue for a while."""
        ends = Statement(advisory.END, (backend, self.key(name)))
        within = max(until - self._runtime.now(), 0.001)
        await self._transport.transact(lambda tx: tx.commit(*more, ends), within=within)

    def close(self, session: Session) -> None:
        self._transport.drop(session.connection)  # a job or a caller that waits on it gets an error, and then closes it

    def keep(self, session: Session) -> None:
        """Take back a session without a lock; its connection is kept for the next session."""
        if not session.dead:
            self._transport.keep(session.connection)

    async def closed_connections(self, session: Session) -> bool:
        """Return whether the server has closed a connection. One in use is skipped: an answer would look the same."""
        if session.mutex.busy or not await session.mutex.take(self._runtime.now()):
            return False
        try:
            if session.connection.open and self._transport.alive(session.connection):
                return False
            session.failed = no_answer(self._transport.where, "the server closed the connection", unknown=False)
            return True
        finally:
            session.mutex.give()

    async def ask(self, session: Session, until: float, *statements: Statement) -> list[list[Row]]:
        """Run statements on the session, one batch at a time; a late or refused answer ends the session."""
        where = self._transport.where
        if not await session.mutex.take(until):
            raise no_answer(where, "the connection of the lock is busy", unknown=False)
        try:
            if not session.connection.open:
                raise no_answer(where, "the connection is closed", unknown=False)
            return await self._transport.run(session.connection.exchange(statements), until)
        except ServerError as error:
            self._transport.drop(session.connection)
            session.failed = refused(where, error) if error.fatal else None
            raise refused(where, error) from None
        except Broken as error:
            self._transport.drop(session.connection)
            session.failed = no_answer(where, error, unknown=False)
            raise no_answer(where, error, unknown=True) from None
        except TimeoutError as error:
            self._transport.drop(session.connection)
            raise no_answer(where, error, unknown=True) from None
        except BaseException:
            self._transport.drop(session.connection)
            raise
        finally:
            session.mutex.give()

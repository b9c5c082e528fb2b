"""The sessions of ``mode=session``: each has an advisory lock, or waits for one in the server's queue.

The server ends a session that is silent for the length of a lease (from PostgreSQL 14). A session whose answer is late
or missing is closed, and its lock is free. An error of the server is an answer: it ends an attempt, but no hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session import sessions
from leasehold.stores._sql.transport import Row, Semaphore, Statement
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.errors import Broken, ServerError, no_answer, refused
from leasehold.stores.postgres.connection.exchange import Connection
from leasehold.stores.postgres.connection.transaction import OF_POOLERS


@dataclass(eq=False, slots=True, kw_only=True)
class Session(sessions.Session):
    """A connection that has a lock, or tries to get it.

    Attributes:
        key: of the advisory lock.
        silence: seconds of silence after which the server ends it, as it was last told.
        failed: why it cannot be used any more.
    """

    key: advisory.Key
    connection: Connection = field(repr=False)
    silence: float = 0.0
    failed: StoreUnavailable | None = None

    @property
    def dead(self) -> bool:
        """Whether it cannot be used any more, so that its lock is gone."""
        return self.returned or not self.connection.open or self.failed is not None

    @property
    def backend(self) -> int:
        """The process id of the server's end."""
        backend: int = self.connection.facts["backend"]
        return backend

    @property
    def hint(self) -> str:
        """Its name in the rows that people see."""
        return f"pid:{self.backend}"

    @property
    def end(self) -> Statement:
        """What lets the server end it: after a broken connection it would stay in the server's queue for a while."""
        text, args = self.key.about(advisory.END, self.backend)
        return Statement(text + advisory.OF_SERVER, (*args, self.connection.facts["started"]))

    @property
    def queue_state(self) -> Statement:
        """What asks whether it has its lock, or waits for it."""
        return self.key.about(advisory.QUEUED, self.backend)

    def limit_silence(self) -> Statement:
        """Return what sets after how much silence the server ends it, and that it ends no wait."""
        self.silence = self.lease
        return Statement(advisory.SESSION_LIMITS, (f"{max(int(self.silence * 1000), 1)}ms",))


class Sessions(sessions.Sessions[Session]):
    """Those of one client."""

    def __init__(self, runtime: Runtime, transport: PostgresTransport, key_of: Callable[[str], advisory.Key]) -> None:
        super().__init__(runtime)
        self._transport = transport
        self._key_of = key_of

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[Session, bool]:
        key, connection = self._key_of(name), await self._transport.session(until)
        mutex = Semaphore(self._runtime, 1)
        session = Session(name=name, ticket=ticket, mutex=mutex, key=key, connection=connection)
        ((locked,), _) = await self.ask(session, until, key.about(advisory.TRY), session.limit_silence())
        return session, bool(locked[0])

    async def wait(self, session: Session, name: str, until: Callable[[], float]) -> None:
        where, has = self._transport.where, False
        waits = session.connection.exchange([session.key.about(advisory.WAIT)])
        try:
            while not has:
                limit = until()
                try:
                    await self._transport.run(waits, limit, goes_on=True)
                    has = True
                except TimeoutError:
                    if until() <= limit:
                        raise self.not_sent("no waiter is left") from None
        except ServerError as error:
            raise refused(where, error) from None
        except Broken as error:
            raise no_answer(where, error, unknown=False) from None
        finally:
            waits.close()
            if not has:
                self.close(session)

    async def free(self, session: Session, name: str, until: float, *, has: bool) -> None:
        if has and not session.dead:
            await self.leave(session, until, session.key.about(advisory.UNLOCK))
        else:
            self._keep(session)

    async def end(self, session: Session, name: str, until: float) -> None:
        self.close(session)
        within = max(until - self._runtime.now(), 0.001)
        await self._transport.transact(lambda tx: tx.commit(session.end), within=within)

    def close(self, session: Session) -> None:
        if session.returned:
            return
        self._transport.drop(session.connection)  # a job or a caller that waits on it gets an error, and then closes it

    async def _ask(
        self, session: Session, until: float, statements: Sequence[Statement], last: bool
    ) -> list[list[Row]]:
        where = self._transport.where
        try:
            if session.returned or not session.connection.open:
                raise self.not_sent("the connection is closed")
            answers = await self._transport.run(session.connection.exchange(statements), until)
            session.returned = last
            return answers
        except ServerError as error:
            # A hold goes on: it has its lock as long as the session lives, which the server has just answered on.
            if error.fatal or last or not session.token or error.code.startswith(OF_POOLERS):
                self.close(session)
            session.failed = refused(where, error) if error.fatal else None
            raise refused(where, error) from None
        except Broken as error:
            self.close(session)
            session.failed = no_answer(where, error, unknown=False)
            raise no_answer(where, error, unknown=True) from None
        except TimeoutError as error:
            self.close(session)
            raise no_answer(where, error, unknown=True) from None
        except BaseException:
            self.close(session)
            raise

    async def leave(self, session: Session, until: float, *statements: Statement) -> Sequence[Sequence[Row]]:
        answers = await self.ask(session, until, *statements, last=True)
        self._keep(session)
        return answers

    def not_sent(self, why: str) -> StoreUnavailable:
        return no_answer(self._transport.where, why, unknown=False)

    def _keep(self, session: Session) -> None:
        if session.connection.open and session.failed is None:
            session.returned = True
            self._transport.keep(session.connection)

    def _notice_end(self, session: Session) -> bool:
        if session.dead or self._transport.alive(session.connection):
            return False
        session.failed = self.not_sent("the server closed the connection")
        return True

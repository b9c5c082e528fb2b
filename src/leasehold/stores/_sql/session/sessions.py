"""The sessions of one client that have locks, or try to get them: what is the same on all servers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.waiter import WaitingSessions
from leasehold.stores._sql.transport import Permit, Row, Semaphore, Statement


@dataclass(eq=False, slots=True, kw_only=True)
class Session:
    """A connection that has a lock, or tries to get it.

    Attributes:
        name: the name that is locked.
        ticket: the ticket for which it was opened, or that holds.
        mutex: for one request at a time.
        token: that of the hold, if its ticket holds.
        returned: whether its connection was given back, and may belong to another session now. Set under the mutex.
    """

    name: str
    ticket: Ticket
    mutex: Semaphore = field(repr=False)
    token: int = 0
    returned: bool = False

    @property
    def lease(self) -> float:
        """Seconds of silence after which the server ends the session."""
        return self.ticket.terms.lease


S = TypeVar("S", bound=Session)


class Sessions(WaitingSessions[S]):
    """Used by many tasks or threads at once. It also knows which tickets hold."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._holds: dict[str, S] = {}

    def get(self, ticket: str) -> S | None:
        """Return the session of a ticket that holds."""
        return self._holds.get(ticket)

    def hold(self, session: S, token: int) -> None:
        """Record that the ticket of a session holds."""
        session.token = token
        self._holds[session.ticket.id] = session

    def take(self, ticket: str) -> S | None:
        """Remove and return the session of a ticket that holds."""
        return self._holds.pop(ticket, None)

    def lost(self, session: S) -> None:
        """Close a session, whose ticket does not hold any more."""
        if self._holds.get(session.ticket.id) is session:
            del self._holds[session.ticket.id]
        self.close(session)

    def any_held(self) -> bool:
        """Return whether any ticket holds."""
        return bool(self._holds)

    async def closed_connections(self) -> list[str]:
        """Return the tickets whose connections the server has closed since the last call, as far as this end can see.

        A connection in use is skipped: what arrives is an answer, and its reader gets the error if it ends.
        """
        gone = list[str]()
        for ticket, session in list(self._holds.items()):
            mine: list[Permit] = []
            try:
                if not await session.mutex.take(self._runtime.now(), mine):
                    continue
                if not session.returned and self._notice_end(session):
                    gone.append(ticket)
            finally:
                mine.clear()
                session.mutex.notify()
        return gone

    async def has_ended(self, session: S, until: float) -> bool:
        """Return whether the server has closed the connection of a session, and close it; not while it is in use."""
        mine: list[Permit] = []
        try:
            return await session.mutex.take(until, mine) and self._notice_end(session)
        finally:
            mine.clear()
            session.mutex.notify()

    def close_all(self) -> None:
        """Close the connections of all holds: the server frees their locks."""
        sessions, self._holds = list(self._holds.values()), {}
        for session in sessions:
            self.close(session)

    async def ask(
        self, session: S, until: float, *statements: Statement, last: bool = False
    ) -> Sequence[Sequence[Row]]:
        """Run statements on a session, one batch at a time; after the ``last`` one it is returned.

        Raises:
            StoreUnavailable: it ended, or its answer is late; it is closed. Or it was busy until now, or was returned.
        """
        mine: list[Permit] = []
        try:
            if not await session.mutex.take(until, mine):
                raise self.not_sent("the connection of the lock is busy")
            return await self._ask(session, until, statements, last)
        finally:
            mine.clear()
            session.mutex.notify()

    @abstractmethod
    async def _ask(
        self, session: S, until: float, statements: Sequence[Statement], last: bool
    ) -> Sequence[Sequence[Row]]:
        """Do as `ask`; its caller has the session's mutex."""

    @abstractmethod
    async def leave(self, session: S, until: float, *statements: Statement) -> Sequence[Sequence[Row]]:
        """Run the last statements on a session, and keep its connection for the next one."""

    @abstractmethod
    def not_sent(self, why: str) -> StoreUnavailable:
        """Return the error of a request that was not sent."""

    @abstractmethod
    def _notice_end(self, session: S) -> bool:
        """Return whether the server has closed the idle connection of a session that counted as open."""

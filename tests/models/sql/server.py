"""What models of SQL servers share: tables, the sessions of connections with their locks, and how a session ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from leasehold.stores._sql.transport import Row
from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Connection, Host
from models.sql.rows import Locks, Rows, Tables
from models.sql.session_locks import ENDED_WITHIN, SessionLocks, next_look


@dataclass(eq=False)
class Session:
    """What serves one connection.

    Attributes:
        begun: whether a transaction is open.
        gone: whether its client is, which one that waits notices late.
        since: when it began to wait for a lock of its own.
        turns: counts what it was asked, so that a time-out knows whether it is still meant.

    """

    line: Connection
    begun: bool = False
    gone: bool = False
    since: float = 0.0
    turns: int = 0

    @property
    def number(self) -> int:
        """The server's number of the session."""
        return self.line.number


S = TypeVar("S", bound=Session)


class SQLServerModel(Host, Generic[S]):
    """A server.

    Attributes:
        handed: the rows of a statement that waited for a lock of the session's own, and has it.
        own: who has which of these locks, or waits for it.
        conflicts_until: when its transactions have bad luck no more.

    """

    handed: ClassVar[Sequence[Row]]

    def __init__(self, scheduler: Scheduler, tables: Tables, *, rate: float, name: str) -> None:
        super().__init__(scheduler, rate=rate, name=name)
        self.tables = tables
        self.tables.restore(self.tables.first)
        self.own = SessionLocks[S]()
        self.conflicts_until = 0.0
        self.starts = 1
        self._sessions: dict[int, S] = {}
        self._locks = Locks[S]()

    @abstractmethod
    def _go_on(self, session: S) -> None:
        """Carry out the rest of a request, as far as no lock is in the way."""

    @abstractmethod
    def _finish(self, session: S) -> None:
        """End a transaction: let its locks go, each to who has waited longest."""

    # --- what may happen to it ---------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Row]]:
        """Return what is committed now."""
        return self.tables.rows()

    def restart(self, seconds: float, *, back_to: Rows | None = None) -> None:
        """End all connections and transactions, and be away; ``back_to``: come back with older rows."""
        super().restart(seconds)
        self.starts += 1
        for session in list(self._sessions.values()):
            self._end(session)
        if back_to is not None:
            self.note("lacks its last commits")
            self.tables.restore(back_to)

    def revoke(self, which: int) -> None:
        """End one of the sessions that have a lock of their own, if there is any."""
        if held := sorted(self.own.owners(), key=lambda session: session.number):
            self.terminate(held[which % len(held)])

    # --- the ends of sessions ----------------------------------------------------------------------------------

    def over(self, line: Connection) -> None:
        """Take note that a line has ended; a server learns of it when the word arrives."""
        super().over(line)
        session = self._sessions.get(line.number)
        if session is not None:
            when = self.arrival(line.link, line.link.requests_held, line.sent_until)
            self.scheduler.at(when, self.machine, lambda: self._ended(session))

    def terminate(self, session: S) -> None:
        """End a session from outside, whatever it does; who asked for it is answered before."""
        self.note(f"ends the session of {session.line.client.name}")
        when = self.scheduler.time + ENDED_WITHIN * self.scheduler.random.random()
        self.scheduler.at(when, self.machine, lambda: self._hang_up_on(session))

    def _ended(self, session: S) -> None:
        """Take note that the client is gone."""
        session.gone = True
        if self.own.waits(session):
            when = next_look(session.since, self.scheduler.time)
            self.scheduler.at(when, self.machine, lambda: self._end(session))
        elif not self._is_deaf(session):
            self._end(session)

    def _is_deaf(self, session: S) -> bool:
        """Say whether a session does not notice yet that its client is gone."""
        return False

    def _stands_idle(self, session: S, seconds: float) -> None:
        """End a session if it says nothing for so long from now on."""
        turn = session.turns

        def time_out() -> None:
            if session.turns == turn and session.number in self._sessions:
                self.note(f"ends the idle session of {session.line.client.name}")
                self._hang_up_on(session)

        self.scheduler.at(self.scheduler.time + seconds, self.machine, time_out)

    def _hang_up_on(self, session: S) -> None:
        session.line.end(arrives=False)
        self._end(session)

    def _end(self, session: S) -> None:
        """End a session: all that it has is free."""
        if self._sessions.pop(session.number, None) is not None:
            self._finish(session)
            self.hand_over(self.own.end(session))

    # --- who waited --------------------------------------------------------------------------------------------

    def hand_over(self, next_waiters: Sequence[Any]) -> None:
        """Let those go on who have a lock of their own now."""
        for next_waiter in next_waiters:
            next_waiter.done.append(self.handed)
        self._go_on_with(next_waiters)

    def _go_on_with(self, next_waiters: Sequence[S]) -> None:
        for next_waiter in next_waiters:
            self.scheduler.at(self.scheduler.time, self.machine, partial(self._go_on, next_waiter))

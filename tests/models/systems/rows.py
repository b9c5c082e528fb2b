"""What systems of one SQL server share, with lease rows or the locks of its sessions: which faults there are."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.sql.rows import Rows
from models.sql.session_locks import LOOKS_EACH
from models.system import Spoilt, System
from models.systems.redis import AWAY

LAG = 1.0
"""Seconds of commits that a failover may lose."""

NEAR_BACK, FAR_BACK = 2.0, 7200.0
"""Seconds that a clock may be set back: by a little, and in half of the cases by far more than any lease."""

SILENT = 2.0
"""Seconds that a silent session lives: a lease of the histories."""

OF_SESSIONS = Menu(
    ("lock", "fixed", "fair"),
    (
        Kind.STALL, Kind.KILL, Kind.HOLD, Kind.ONE_WAY, Kind.SLOW, Kind.WALL, Kind.ROLLBACK, Kind.FORWARD, Kind.BACK,
    ),
    (Kind.SUSPEND, Kind.RESET, Kind.REFUSE, Kind.RESTART, Kind.REVOKE, Kind.FAILOVER),
)  # fmt: skip
"""Of ``mode=session``, whose locks have nothing to do with any clock. Who loses the connection loses the lock with it,
before it can know: then only tokens tell the old from the new."""


class RowServer(Protocol):
    """A model of a server with tables."""

    conflicts_until: float

    def snapshot(self) -> list[list[tuple[Any, ...]]]:
        """Return what is committed now."""
        ...

    def restart(self, seconds: float, *, back_to: Rows | None = None) -> None:
        """End all connections and transactions, and be away; ``back_to``: come back with older rows."""
        ...

    def step(self, seconds: float) -> None:
        """Set its clock forward, or back."""
        ...

    def revoke(self, which: int) -> None:
        """End one of the sessions that have a lock of their own, if there is any."""
        ...


class RowSystem(System):
    """The word is kept while no commit is lost and the clock is not set.

    Attributes:
        stall: seconds after which the server ends a transaction that stands idle.

    """

    stall: ClassVar[float]
    server: RowServer

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self._behind: dict[float, Rows] = {}
        self._forgot = self._went_back = False

    def foresee(self, one: Strike) -> None:
        """Keep, before a failover, what its standby will have; know that a client may leave a row locked behind.

        One that stands still or is cut off in a transaction holds up the others until the server ends it, tries and
        renewals too.
        """
        if one.kind in OF_CLIENTS and one.kind is not Kind.WALL:
            self.late, self.tries, self.holds_up = self.stall, False, True
        if one.kind is Kind.FAILOVER:
            when = max(0.0, one.at - one.luck * LAG)
            self.harness.scheduler.at(when, self.harness.fate, lambda: self._keep(one.at))

    def _keep(self, at: float) -> None:
        self._behind[at] = self.server.snapshot()

    def restart(self, one: Strike) -> float:
        """Restart it with what it had."""
        seconds = 0.05 + one.luck * AWAY
        self.server.restart(seconds)
        return seconds

    def rollback(self, one: Strike) -> float:
        """Let half of the commits fail that others could have been in the way of."""
        self.server.conflicts_until = self.harness.scheduler.time + one.seconds
        return one.seconds

    def failover(self, one: Strike) -> float | None:
        """Come back without the last commits, unless the clock was set back: tokens rest on the rows or on it."""
        if self._went_back:
            return None
        self._forgot = True
        seconds = 0.05 + one.luck * AWAY
        self.server.restart(seconds, back_to=self._behind[one.at])
        return seconds

    def back(self, one: Strike) -> float | None:
        """Set its clock back, unless it has lost commits."""
        if self._forgot:
            return None
        self._went_back = True
        self.server.step(-one.luck * (NEAR_BACK if one.luck < 0.5 else FAR_BACK))
        return 0.0

    def revoke(self, one: Strike) -> float:
        """End one of the sessions that have a lock, if there is any."""
        self.server.revoke(one.victim)
        return 0.0


class SessionSystem(RowSystem):
    """With ``mode=session`` the word is kept while no connection ends under who holds, whatever becomes of clocks."""

    menu = OF_SESSIONS
    stall = SILENT + LOOKS_EACH

    def foresee(self, one: Strike) -> None:
        """Know that a session of a client that stands still, or is cut off, may have the lock until the server ends it.

        One after the other may, if there are several such.
        """
        if one.kind in OF_CLIENTS and one.kind is not Kind.WALL:
            self.late, self.tries = self.late + self.stall, False
        else:
            super().foresee(one)

"""Which seats of read-write locks a thread or task has, and on or beside which of them the next one stands. No I/O.

Theory of operation
-------------------
One thread or task has at most one seat in each role at a name; asking again for a role that it has makes that seat
deeper, as with a re-entrant lock. What it asks for beside another role of its own:

=================  ======================  ===========================  ======================
asks for / holds   reader                  upgradeable                  writer
=================  ======================  ===========================  ======================
reader             deeper                  deeper: the upgradeable one  beside it (downgrade)
                                           reads already
upgradeable        refused                 deeper                       beside it (downgrade)
writer             refused                 beside it (upgrade)          deeper
=================  ======================  ===========================  ======================

Refused is what could wait for ever: two readers that both want to write wait for each other, each for the other's end.
There is one upgradeable reader at a time, and it never stands beside a plain reader of its own: so whoever upgrades
waits only for readers who themselves wait for nobody, and there is no circle.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from leasehold.engine.hold import Lease
from leasehold.model import Kind, Rule
from leasehold.primitives.hold import AsyncHold
from leasehold.runtimes.base import Party


class Role(enum.Enum):
    """As what one holds a read-write lock."""

    READER = "reader"
    UPGRADEABLE = "upgradeable"
    WRITER = "writer"

    def rule(self, *, fair: bool) -> Rule:
        """Return what a ticket in this role asks for."""
        exclusive, upgradeable = self is Role.WRITER, self is Role.UPGRADEABLE
        return Rule(Kind.READ_WRITE, exclusive=exclusive, upgradeable=upgradeable, fair=fair)


@dataclass(eq=False, slots=True)
class Taken:
    """A seat of one thread or task, as deep as it has ``holds``; each with the role that was asked for."""

    role: Role
    lease: Lease
    party: Party
    holds: list[tuple[Role, AsyncHold]] = field(default_factory=list[tuple[Role, AsyncHold]])

    def last(self, role: Role) -> AsyncHold | None:
        """Return the last hold that was asked for in a role."""
        return next((hold for asked, hold in reversed(self.holds) if asked is role), None)

    def remove(self, hold: AsyncHold) -> None:
        """Make the seat less deep by this hold."""
        self.holds = [one for one in self.holds if one[1] is not hold]


class Seats:
    """All seats of one client at read-write locks, by name and by the key of the thread or task."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], list[Taken]] = {}

    def of(self, name: str, key: int) -> dict[Role, Taken]:
        """Return the seats of the thread or task that has this key now, not of one that ended and had it before."""
        return {taken.role: taken for taken in self._taken.get((name, key), []) if taken.party.alive()}

    def add(self, name: str, taken: Taken) -> None:
        """Take note of a seat."""
        key = taken.party.key
        kept = [other for other in self._taken.get((name, key), []) if other.party.alive()]
        self._taken[name, key] = [*kept, taken]

    def drop(self, name: str, taken: Taken) -> None:
        """Forget a seat."""
        key = taken.party.key
        kept = [other for other in self._taken.get((name, key), []) if other is not taken]
        if kept:
            self._taken[name, key] = kept
        else:
            self._taken.pop((name, key), None)

    def clear(self) -> None:
        """Forget all, in a forked child: they are the parent's."""
        self._taken.clear()


def same_seat(role: Role, mine: dict[Role, Taken]) -> Taken | None:
    """Return the seat of mine that becomes deeper when I ask for ``role``; None if it takes another seat."""
    if role is Role.READER:
        return mine.get(Role.READER) or mine.get(Role.UPGRADEABLE)
    return mine.get(role)


def beside(name: str, role: Role, mine: dict[Role, Taken]) -> Taken | None:
    """Return the seat of mine beside which a new one in ``role`` stands; None if I have none.

    Raises:
        RuntimeError: it could wait for ever.

    """
    if role is not Role.READER and Role.READER in mine:
        raise RuntimeError(
            f"this thread or task reads {name!r} and asks to be its {role.value}: two that do so would wait for each "
            "other for ever. Release the reader first, or take upgradeable() in its place and upgrade its hold"
        )
    return mine.get(Role.WRITER) or mine.get(Role.UPGRADEABLE)

"""Which entries of read-write locks a thread or task has, and on or beside which of them the next one stands. No I/O.

Theory of operation
-------------------
One thread or task has at most one entry in each role at a name; asking again for a role that it has makes that entry
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
import weakref

from leasehold._engine.lease import Lease
from leasehold._model import Kind, LockMode
from leasehold._runtimes.base import Caller
from leasehold.primitives.locks.reentrancy import Entry


class Role(enum.Enum):
    """As what one holds a read-write lock."""

    READER = "reader"
    UPGRADEABLE = "upgradeable"
    WRITER = "writer"

    def mode(self, *, fair: bool) -> LockMode:
        """Return what a ticket in this role asks for."""
        exclusive, upgradeable = self is Role.WRITER, self is Role.UPGRADEABLE
        return LockMode(Kind.READ_WRITE, exclusive=exclusive, upgradeable=upgradeable, fair=fair)


class Taken(Entry):
    """An entry of one thread or task, as deep as it has holds; each with the role that was asked for."""

    __slots__ = ("role",)

    def __init__(self, role: Role, lease: Lease, caller: Caller) -> None:
        super().__init__(lease, caller)
        self.role = role


class Entries:
    """All entries of one client at read-write locks, by name, role and the key of the thread or task."""

    def __init__(self) -> None:
        self._taken = weakref.WeakValueDictionary[tuple[str, int, Role], Taken]()  # it keeps none of them alive

    def of(self, name: str, key: int) -> dict[Role, Taken]:
        """Return the entries of the thread or task that has this key now, not of one that ended and had it before."""
        entries = [self._taken.get((name, key, role)) for role in Role]
        return {taken.role: taken for taken in entries if taken is not None and taken.caller.alive()}

    def add(self, name: str, taken: Taken) -> None:
        """Take note of an entry."""
        self._taken[name, taken.caller.key, taken.role] = taken

    def drop(self, name: str, taken: Taken) -> None:
        """Forget an entry."""
        key = (name, taken.caller.key, taken.role)
        if self._taken.get(key) is taken:
            self._taken.pop(key, None)

    def clear(self) -> None:
        """Forget all, in a forked child: they are the parent's."""
        self._taken.clear()


def same_entry(role: Role, mine: dict[Role, Taken]) -> Taken | None:
    """Return the entry of mine that becomes deeper when I ask for ``role``; None if it takes another entry."""
    if role is Role.READER:
        return mine.get(Role.READER) or mine.get(Role.UPGRADEABLE)
    return mine.get(role)


def alongside(name: str, role: Role, mine: dict[Role, Taken]) -> Taken | None:
    """Return the entry of mine beside which a new one in ``role`` stands; None if I have none.

    Raises:
        RuntimeError: it could wait for ever.

    """
    if role is not Role.READER and Role.READER in mine:
        raise RuntimeError(
            f"this thread or task reads {name!r} and asks to be its {role.value}: two that do so would wait for each "
            "other for ever. Release the reader first, or take upgradeable() in its place and upgrade its hold"
        )
    return mine.get(Role.WRITER) or mine.get(Role.UPGRADEABLE)

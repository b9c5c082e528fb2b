"""The entries of a thread or task at read-write locks, and the rules for acquiring another one. No I/O.

Theory of operation
-------------------
One thread or task has at most one entry in each role at a name. To acquire a role again re-enters that entry, as with a
re-entrant lock. What happens when it acquires a role while it holds another:

===================  ========================  ============================  ==========================
acquires / holds     reader                    upgradeable                   writer
===================  ========================  ============================  ==========================
reader               re-enters                 re-enters the upgradeable     new entry alongside
                                               entry, which reads            (downgrade)
upgradeable          refused                   re-enters                     new entry alongside
                                                                             (downgrade)
writer               refused                   new entry alongside           re-enters
                                               (upgrade)
===================  ========================  ============================  ==========================

Refused is what could deadlock: two readers that both want to write would wait for each other. At most one upgradeable
reader holds at a time, and its thread or task has no plain reader entry. So an upgrade waits only for readers that
wait for nobody, and there is no deadlock.
"""

from __future__ import annotations

import enum
import weakref

from leasehold._engine.lease import Lease
from leasehold._model import Kind, LockMode
from leasehold._runtimes.base import Caller
from leasehold.primitives.locks.reentrancy import Entry


class Role(enum.Enum):
    """The three ways to hold a read-write lock."""

    READER = "reader"
    UPGRADEABLE = "upgradeable"
    WRITER = "writer"

    def mode(self, *, fair: bool) -> LockMode:
        """Return the lock mode of a ticket in this role."""
        exclusive, upgradeable = self is Role.WRITER, self is Role.UPGRADEABLE
        return LockMode(Kind.READ_WRITE, exclusive=exclusive, upgradeable=upgradeable, fair=fair)


class RoleEntry(Entry):
    """An entry of one thread or task in one role. Its holds may have been requested as another role."""

    __slots__ = ("role",)

    def __init__(self, role: Role, lease: Lease, caller: Caller) -> None:
        super().__init__(lease, caller)
        self.role = role


class Entries:
    """All entries of one client at read-write locks, by name, role and the key of the thread or task."""

    def __init__(self) -> None:
        self._entries = weakref.WeakValueDictionary[tuple[str, int, Role], RoleEntry]()  # weak references

    def of(self, name: str, key: int) -> dict[Role, RoleEntry]:
        """Return the entries of the thread or task that has this key now, not of an ended one that had it before."""
        entries = [self._entries.get((name, key, role)) for role in Role]
        return {entry.role: entry for entry in entries if entry is not None and entry.caller.alive()}

    def add(self, name: str, entry: RoleEntry) -> None:
        """Add an entry."""
        self._entries[name, entry.caller.key, entry.role] = entry

    def drop(self, name: str, entry: RoleEntry) -> None:
        """Remove an entry."""
        key = (name, entry.caller.key, entry.role)
        if self._entries.get(key) is entry:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all entries, in a forked child: they belong to the parent."""
        self._entries.clear()


def same_entry(role: Role, mine: dict[Role, RoleEntry]) -> RoleEntry | None:
    """Return the own entry that acquiring ``role`` re-enters; None if it needs a new entry."""
    if role is Role.READER:
        return mine.get(Role.READER) or mine.get(Role.UPGRADEABLE)
    return mine.get(role)


def alongside(name: str, role: Role, mine: dict[Role, RoleEntry]) -> RoleEntry | None:
    """Return the own entry alongside which a new one in ``role`` is acquired; None if there is none.

    Raises:
        RuntimeError: it could deadlock.

    """
    if role is not Role.READER and Role.READER in mine:
        raise RuntimeError(
            f"this thread or task reads {name!r} and asks to be its {role.value}: two that do so would wait for each "
            "other for ever. Release the reader first, or take upgradeable() in its place and upgrade its hold"
        )
    return mine.get(Role.WRITER) or mine.get(Role.UPGRADEABLE)

"""The members of a multi-lock: turns names and lock objects into locks with different names, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from leasehold._model import Kind
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.primitives.locks.multi_lock import AsyncMultiLock
from leasehold.primitives.locks.mutex import AsyncMutex, Mutex
from leasehold.primitives.locks.semaphore import AsyncSemaphore, Semaphore


def members_of(
    locks: Iterable[str | AsyncMutex | AsyncSemaphore], named: Callable[[str], AsyncLock]
) -> tuple[AsyncMutex, ...]:
    """Return the locks in order of their names; ``named`` makes one of a name.

    Raises:
        TypeError: something is neither a name nor a lock of the same flavor.
        ValueError: there is none, or two different ones have the same name.

    """
    refuse_no_list(locks)
    members: dict[str, AsyncMutex] = {}
    for item in locks:
        for member in _spread(item, named):
            other = members.setdefault(member.name, member)
            if not _same(member, other):
                raise ValueError(
                    f"multi_lock got two different locks named {member.name!r}; it takes each name once, as one thing "
                    "of one client (for several permits: semaphore.permits(n))"
                )
    if not members:
        raise ValueError("multi_lock got no names")
    return tuple(members[name] for name in sorted(members))


def _spread(item: object, named: Callable[[str], AsyncLock]) -> tuple[AsyncMutex, ...]:
    if isinstance(item, str):
        return (named(item),)
    if isinstance(item, AsyncMultiLock):
        return tuple(item._members)
    if isinstance(item, AsyncSemaphore):
        return (item.permits(1),)
    if isinstance(item, AsyncMutex):
        return (item,)
    raise TypeError(
        "multi_lock takes names, and locks of clients of the same flavor (of an RWLock its reader() or writer()), "
        f"not {item!r}"
    )


def _same(one: AsyncMutex, other: AsyncMutex) -> bool:
    """Return whether two members are the same lock: an item that is listed twice is acquired once."""
    if one is other:
        return True
    mine, theirs = one._options.terms.mode, other._options.terms.mode
    alike = type(one) is type(other) and one._engine is other._engine and mine == theirs
    return alike and mine.kind is not Kind.SEMAPHORE


def cores_of(locks: Iterable[str | Mutex | Semaphore]) -> list[str | AsyncMutex | AsyncSemaphore]:
    """Return the async cores of sync locks, for `members_of`."""
    refuse_no_list(locks)
    return [_core(item) for item in locks]


def refuse_no_list(locks: object) -> None:
    """Raise TypeError for one name where a list is expected: its letters would become names."""
    if isinstance(locks, str | bytes) or not isinstance(locks, Iterable):
        raise TypeError(f"multi_lock takes a list of names or locks, not {locks!r}; for one name write [name]")


def _core(item: Any) -> Any:
    if isinstance(item, Mutex | Semaphore):
        return item._core
    if isinstance(item, AsyncMutex | AsyncSemaphore):
        raise TypeError(f"{item!r} is a lock of an AsyncClient, and this client blocks")
    return item

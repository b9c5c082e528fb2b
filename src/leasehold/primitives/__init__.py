"""Primitives: one file is one primitive, its algorithm and its sync facade side by side.

A program pays for those that it uses: what the table has is imported at its first use, as ``primitives.Latch``. But a
client that is made has imported lock and re-entrant lock. So an acquire and a release import nothing, which would be
harmful in a signal handler, in a forked child, or while the interpreter ends.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

_HOMES: Final = {
    "calls.once": "AsyncOnce Once",
    "calls.scheduled": "AsyncScheduled Scheduled tick_of",
    "calls.synchronized": "AsyncSynchronized Naming Synchronized",
    "coordination.barrier": "AsyncBarrier Barrier parties_of",
    "coordination.election": "AsyncElection Election Leader",
    "coordination.latch": "AsyncLatch Latch",
    "coordination.leadership": "ELECTION AsyncLeadership Leadership",
    "locks.options": "Cancellation",
    "locks.hold": "AsyncHold Hold",
    "locks.lock": "AsyncLock Lock",
    "locks.multi_hold": "AsyncMultiHold MultiHold",
    "locks.multi_lock": "AsyncMultiLock MultiLock cores_of members_of",
    "locks.rlock": "AsyncRLock RLock",
    "locks.rw_lock": "AsyncRWLock AsyncRWLockSide AsyncUpgradeableHold AsyncUpgradeableSide Role RWLock RWLockSide "
    "UpgradeableHold UpgradeableSide",
    "locks.semaphore": "AsyncSemaphorePermits AsyncSemaphore SemaphorePermits Semaphore permits_of",
    "values.cached": "AsyncCachedValue AsyncFetch CachedValue Fetch TimeToLive",
    "values.versioned": "AsyncVersionedCell Versioned VersionedCell",
}
"""Module to the names of it that others use. The imports below say the same to type checkers, which skip the table."""

if TYPE_CHECKING:  # isort: off
    from leasehold.primitives.calls.once import AsyncOnce as AsyncOnce, Once as Once
    from leasehold.primitives.calls.scheduled import AsyncScheduled as AsyncScheduled, Scheduled as Scheduled
    from leasehold.primitives.calls.synchronized import (
        AsyncSynchronized as AsyncSynchronized,
        Naming as Naming,
        Synchronized as Synchronized,
    )
    from leasehold.primitives.calls.scheduled import tick_of as tick_of
    from leasehold.primitives.coordination.barrier import (
        AsyncBarrier as AsyncBarrier,
        Barrier as Barrier,
        parties_of as parties_of,
    )
    from leasehold.primitives.coordination.election import (
        AsyncElection as AsyncElection,
        Election as Election,
        Leader as Leader,
    )
    from leasehold.primitives.coordination.latch import AsyncLatch as AsyncLatch, Latch as Latch
    from leasehold.primitives.coordination.leadership import (
        ELECTION as ELECTION,
        AsyncLeadership as AsyncLeadership,
        Leadership as Leadership,
    )
    from leasehold.primitives.locks.options import Cancellation as Cancellation
    from leasehold.primitives.locks.hold import AsyncHold as AsyncHold, Hold as Hold
    from leasehold.primitives.locks.lock import AsyncLock as AsyncLock, Lock as Lock
    from leasehold.primitives.locks.multi_hold import AsyncMultiHold as AsyncMultiHold, MultiHold as MultiHold
    from leasehold.primitives.locks.multi_lock import (
        AsyncMultiLock as AsyncMultiLock,
        MultiLock as MultiLock,
        cores_of as cores_of,
        members_of as members_of,
    )
    from leasehold.primitives.locks.rlock import AsyncRLock as AsyncRLock, RLock as RLock
    from leasehold.primitives.locks.rw_lock import (
        AsyncRWLock as AsyncRWLock,
        AsyncRWLockSide as AsyncRWLockSide,
        AsyncUpgradeableSide as AsyncUpgradeableSide,
        AsyncUpgradeableHold as AsyncUpgradeableHold,
        Role as Role,
        RWLock as RWLock,
        RWLockSide as RWLockSide,
        UpgradeableSide as UpgradeableSide,
        UpgradeableHold as UpgradeableHold,
    )
    from leasehold.primitives.locks.semaphore import (
        AsyncSemaphorePermits as AsyncSemaphorePermits,
        AsyncSemaphore as AsyncSemaphore,
        SemaphorePermits as SemaphorePermits,
        Semaphore as Semaphore,
        permits_of as permits_of,
    )
    from leasehold.primitives.values.cached import (
        AsyncCachedValue as AsyncCachedValue,
        AsyncFetch as AsyncFetch,
        CachedValue as CachedValue,
        Fetch as Fetch,
        TimeToLive as TimeToLive,
    )
    from leasehold.primitives.values.versioned import (
        AsyncVersionedCell as AsyncVersionedCell,
        Versioned as Versioned,
        VersionedCell as VersionedCell,
    )
else:

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

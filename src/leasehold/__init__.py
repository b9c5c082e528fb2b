"""leasehold: the distributed lock for Python.

What is not an exception is imported at its first use, so that the import of the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from leasehold.errors import (
    AcquireTimeout,
    BrokenBarrier,
    Conflict,
    LeaseholdError,
    LeaseLost,
    MissingDriver,
    NameInUse,
    NotHeld,
    Outcome,
    StoreRefused,
    StoreUnavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from leasehold._inspection import Contender, LockInfo
    from leasehold.client import AsyncClient, Client
    from leasehold.primitives.calls.once import AsyncOnce, Once
    from leasehold.primitives.calls.scheduled import AsyncScheduled, Scheduled, tick_of
    from leasehold.primitives.calls.synchronized import AsyncSynchronized, Synchronized
    from leasehold.primitives.coordination.barrier import AsyncBarrier, Barrier
    from leasehold.primitives.coordination.election import AsyncElection, Election, Leader
    from leasehold.primitives.coordination.latch import AsyncLatch, Latch
    from leasehold.primitives.coordination.leadership import AsyncLeadership, Leadership
    from leasehold.primitives.locks.hold import AsyncHold, Hold
    from leasehold.primitives.locks.lock import AsyncLock, Lock
    from leasehold.primitives.locks.multi_hold import AsyncMultiHold, MultiHold
    from leasehold.primitives.locks.multi_lock import AsyncMultiLock, MultiLock
    from leasehold.primitives.locks.options import Cancellation
    from leasehold.primitives.locks.rlock import AsyncRLock, RLock
    from leasehold.primitives.locks.rw_lock import (
        AsyncRWLock,
        AsyncRWLockSide,
        AsyncUpgradeableHold,
        AsyncUpgradeableSide,
        RWLock,
        RWLockSide,
        UpgradeableHold,
        UpgradeableSide,
    )
    from leasehold.primitives.locks.semaphore import AsyncSemaphore, AsyncSemaphorePermits, Semaphore, SemaphorePermits
    from leasehold.primitives.values.cached import AsyncCachedValue, CachedValue
    from leasehold.primitives.values.versioned import AsyncVersionedCell, Versioned, VersionedCell

__all__ = [
    "AcquireTimeout",
    "AsyncBarrier",
    "AsyncCachedValue",
    "AsyncClient",
    "AsyncElection",
    "AsyncHold",
    "AsyncLatch",
    "AsyncLeadership",
    "AsyncLock",
    "AsyncMultiHold",
    "AsyncMultiLock",
    "AsyncOnce",
    "AsyncRLock",
    "AsyncRWLock",
    "AsyncRWLockSide",
    "AsyncScheduled",
    "AsyncSemaphore",
    "AsyncSemaphorePermits",
    "AsyncSynchronized",
    "AsyncUpgradeableHold",
    "AsyncUpgradeableSide",
    "AsyncVersionedCell",
    "Barrier",
    "BrokenBarrier",
    "CachedValue",
    "Cancellation",
    "Client",
    "Conflict",
    "Contender",
    "Election",
    "Hold",
    "Latch",
    "Leader",
    "Leadership",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockInfo",
    "MissingDriver",
    "MultiHold",
    "MultiLock",
    "NameInUse",
    "NotHeld",
    "Once",
    "Outcome",
    "RLock",
    "RWLock",
    "RWLockSide",
    "Scheduled",
    "Semaphore",
    "SemaphorePermits",
    "StoreRefused",
    "StoreUnavailable",
    "Synchronized",
    "Unsupported",
    "UpgradeableHold",
    "UpgradeableSide",
    "Versioned",
    "VersionedCell",
    "tick_of",
]

if not TYPE_CHECKING:  # type checkers would allow any name

    def __getattr__(name: str) -> object:
        if name in ("events", "store_api"):
            return import_module(f"leasehold.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = {"Client": "client", "AsyncClient": "client", "LockInfo": "_inspection", "Contender": "_inspection"}
        value = globals()[name] = getattr(import_module(f"leasehold.{home.get(name, 'primitives')}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

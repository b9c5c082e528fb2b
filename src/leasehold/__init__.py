"""leasehold: the distributed lock for Python."""

from leasehold._inspection import Contender, LockInfo
from leasehold.client import AsyncClient, Client
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
from leasehold.primitives.calls.once import AsyncOnce, Once
from leasehold.primitives.calls.scheduled import AsyncScheduled, Scheduled
from leasehold.primitives.calls.synchronized import AsyncSynchronized, Synchronized
from leasehold.primitives.coordination.barrier import AsyncBarrier, Barrier
from leasehold.primitives.coordination.election import AsyncElection, Election, Leader
from leasehold.primitives.coordination.latch import AsyncLatch, Latch
from leasehold.primitives.coordination.leadership import AsyncLeadership, Leadership
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.primitives.locks.lock import AsyncLock, Lock
from leasehold.primitives.locks.multi_hold import AsyncMultiHold, MultiHold
from leasehold.primitives.locks.multi_lock import AsyncMultiLock, MultiLock
from leasehold.primitives.locks.rlock import AsyncRLock, RLock
from leasehold.primitives.locks.rw_lock import AsyncRWLock, AsyncUpgradeableHold, RWLock, UpgradeableHold
from leasehold.primitives.locks.semaphore import AsyncSemaphore, Semaphore
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
    "AsyncScheduled",
    "AsyncSemaphore",
    "AsyncSynchronized",
    "AsyncUpgradeableHold",
    "AsyncVersionedCell",
    "Barrier",
    "BrokenBarrier",
    "CachedValue",
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
    "Scheduled",
    "Semaphore",
    "StoreRefused",
    "StoreUnavailable",
    "Synchronized",
    "Unsupported",
    "UpgradeableHold",
    "Versioned",
    "VersionedCell",
]

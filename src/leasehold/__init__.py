"""leasehold: the distributed lock for Python."""

from leasehold.client import AsyncClient, Client
from leasehold.errors import (
    AcquireTimeout,
    BrokenBarrier,
    Conflict,
    LeaseholdError,
    LeaseLost,
    MissingDriver,
    NotHeld,
    StoreUnavailable,
    Unsupported,
    WrongKind,
)
from leasehold.inspection import Contender, LockInfo
from leasehold.primitives.barrier import AsyncBarrier, Barrier
from leasehold.primitives.election import AsyncElection, Election, Leader
from leasehold.primitives.hold import AsyncHold, Hold
from leasehold.primitives.latch import AsyncLatch, Latch
from leasehold.primitives.leadership import AsyncLeadership, Leadership
from leasehold.primitives.lock import AsyncLock, Lock
from leasehold.primitives.multi_hold import AsyncMultiHold, MultiHold
from leasehold.primitives.multi_lock import AsyncMultiLock, MultiLock
from leasehold.primitives.once import AsyncOnce, Once
from leasehold.primitives.rlock import AsyncRLock, RLock
from leasehold.primitives.rw_lock import AsyncRWLock, AsyncUpgradeableHold, RWLock, UpgradeableHold
from leasehold.primitives.scheduled import AsyncScheduled, Scheduled
from leasehold.primitives.semaphore import AsyncSemaphore, Semaphore
from leasehold.primitives.shared import AsyncShared, Shared
from leasehold.primitives.synchronized import AsyncSynchronized, Synchronized
from leasehold.primitives.versioned import AsyncVersionedValue, Versioned, VersionedValue

__all__ = [
    "AcquireTimeout",
    "AsyncBarrier",
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
    "AsyncShared",
    "AsyncSynchronized",
    "AsyncUpgradeableHold",
    "AsyncVersionedValue",
    "Barrier",
    "BrokenBarrier",
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
    "NotHeld",
    "Once",
    "RLock",
    "RWLock",
    "Scheduled",
    "Semaphore",
    "Shared",
    "StoreUnavailable",
    "Synchronized",
    "Unsupported",
    "UpgradeableHold",
    "Versioned",
    "VersionedValue",
    "WrongKind",
]

"""leasehold: the distributed lock for Python."""

from leasehold.client import AsyncClient, Client
from leasehold.errors import (
    AcquireTimeout,
    LeaseholdError,
    LeaseLost,
    MissingDriver,
    NotHeld,
    StoreUnavailable,
    Unsupported,
    WrongKind,
)
from leasehold.inspection import Contender, LockInfo
from leasehold.primitives.hold import AsyncHold, Hold
from leasehold.primitives.lock import AsyncLock, Lock
from leasehold.primitives.rlock import AsyncRLock, RLock

__all__ = [
    "AcquireTimeout",
    "AsyncClient",
    "AsyncHold",
    "AsyncLock",
    "AsyncRLock",
    "Client",
    "Contender",
    "Hold",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockInfo",
    "MissingDriver",
    "NotHeld",
    "RLock",
    "StoreUnavailable",
    "Unsupported",
    "WrongKind",
]

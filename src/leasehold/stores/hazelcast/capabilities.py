"""What the locks of Hazelcast promise, with its CP subsystem and without."""

from __future__ import annotations

from leasehold._model import Capabilities

WITH_CP = Capabilities(
    fair=False,
    lock_delay=False,
    cells=False,
    meta=False,
    crash_bound="within the CP session's time to live, which the servers set (300 s if nobody did), and 2 s",
    why_not="a FencedLock of Hazelcast is exclusive and has an owner, and no more: leave it out, or use another store",
)

WITHOUT_CP = Capabilities(
    fencing=False,
    fair=False,
    lock_delay=False,
    cells=False,
    hands_over=False,
    meta=False,
    crash_bound="within the lease and 2 s",
    why_not="a lock of an IMap (without_cp=true) has an owner and a time, no more: leave it out, or use another store",
)

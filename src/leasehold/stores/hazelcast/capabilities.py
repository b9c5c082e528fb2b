"""What the locks of Hazelcast's CP subsystem promise."""

from __future__ import annotations

from leasehold._model import Capabilities

CAPABILITIES = Capabilities(
    fair=False,
    lock_delay=False,
    cells=False,
    meta=False,
    crash_bound=(
        "within the CP session's time to live, which the servers set (300 s by default), and 2 s; each new leader "
        "adds a heartbeat interval"
    ),
    why_not="a FencedLock of Hazelcast is exclusive and has an owner, and no more: leave it out, or use another store",
)

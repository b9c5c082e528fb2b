"""The plain key: ``SET key value NX PX milliseconds``, freed and renewed only with the same value.

redis-py's ``Lock``, redlock-py, redsync and node-redlock use it as it is, RedLock.net and Medallion with a prefix. None
of them publishes anything. So the first of our waiters polls ten times a second, in addition to the messages of
our own releases.
"""

from __future__ import annotations

from dataclasses import replace

from leasehold._model import Capabilities
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.scripts import Scripts

POLL = 0.1
"""Seconds, on average, between two looks of the first waiter; redis-py's lock has the same."""

WHY_NOT = (
    "the programs that share its key (layout=plain) know a value and a lease, and nothing else: leave it out, or leave "
    "out layout= where no other program shares the name"
)

CAPABILITIES = Capabilities(
    fair=False,
    lock_delay=False,
    cells=False,
    hands_over=False,
    crash_bound="within the lease + 150 ms",
    why_not=WHY_NOT,
)


class Plain(Layout):
    """The same on one server and on a cluster."""

    def on_cluster(self) -> Layout:
        return replace(self, clustered=True)


def layout(prefix: str = "") -> Layout:
    """Return the layout for keys with this prefix."""
    of = "redis-py's Lock, redlock-py, redsync, node-redlock"
    return Plain("plain", of, CAPABILITIES, Scripts.of("plain"), prefix, POLL, quorum=True, option="prefix")

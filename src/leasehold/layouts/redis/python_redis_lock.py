"""python-redis-lock: ``lock:NAME`` is a plain key, and a release pushes one element to the list ``lock-signal:NAME``.

Its waiters block in ``BLPOP`` on that list, so each element wakes one of them. A release of ours pushes, too, as its
script does: the list is emptied, gets one element, and lives a second. A waiter of ours never pops. An element that it
took and did not use, since it was cancelled or died, would leave a waiter of the other library asleep. Instead the
first of our waiters looks often.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import Capabilities, Kind
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.scripts import Scripts

LOCK, SIGNAL = b"lock:", b"lock-signal:"
"""What its keys begin with; the name follows."""

POLL = 0.03
"""Seconds, on average, between two looks of the first waiter: it sees a release within 45 ms and the round trip."""

CAPABILITIES = Capabilities(
    fair=False,
    lock_delay=False,
    cells=False,
    hands_over=False,
    crash_bound="within the lease + 150 ms",
    why_not="python-redis-lock (layout=python-redis-lock) knows a value and a lease, and nothing else: leave it out, "
    "or leave out layout= where it does not share the name",
)


class PythonRedisLock(Layout):
    """Its keys."""

    def more_keys(self, lock: bytes, kind: Kind) -> Sequence[bytes]:
        return (SIGNAL + lock.removeprefix(LOCK),)


def layout() -> Layout:
    """Return the layout."""
    scripts = Scripts.of("python_redis_lock")
    return PythonRedisLock("python-redis-lock", "python-redis-lock", CAPABILITIES, scripts, LOCK.decode(), POLL)

"""The rows of the demo: the same work, guarded in different ways."""

from __future__ import annotations

import enum


class Guard(enum.StrEnum):
    """How a service guards reading and writing the counter. The value is the path of its URL."""

    NONE = "none"
    THREAD = "thread"
    LEASEHOLD = "leasehold"
    REDLOCK = "redlock"


TITLES = {
    Guard.NONE: "no lock",
    Guard.THREAD: "thread lock in each process",
    Guard.LEASEHOLD: "leasehold",
    Guard.REDLOCK: "leasehold on Redlock",
}

MEANINGS = {
    Guard.NONE: "Each request reads the counter, works for 5 ms, and writes one more back. No request waits.",
    Guard.THREAD: "Each service takes a threading.Lock around it. The threads of one process wait for each other; "
    "the other process knows nothing of that lock.",
    Guard.LEASEHOLD: "Each request takes the same leasehold lock around it, and writes through a guard with the "
    "fencing token of its hold.",
    Guard.REDLOCK: "As leasehold, with a lock that most of three independent Redis servers must grant.",
}

WORKS_FOR = 0.005
"""Seconds that a request works between reading and writing, as a real one does. With no work at all the two services
may happen to take turns, and a thread lock in each seems to be enough."""

NAMESPACE_PREFIX = "leasehold-demo-"
"""Every run has a namespace of its own, so that two runs in one store never meet."""

COUNTER_LIFE = 3600.0
"""Seconds after which the store forgets an untouched counter of the demo."""

LEFT_FOR = 86_400.0
"""Seconds after which a demo's data are unused: 20,000 requests in four rows take minutes."""


def counter_name(guard: Guard) -> str:
    """Return the name of the cell that the requests of one row count in."""
    return f"page-views:{guard.value}"

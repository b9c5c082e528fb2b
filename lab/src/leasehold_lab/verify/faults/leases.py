"""How short a lease a store can keep, and how long after it the hold of a dead client may stay."""

from __future__ import annotations

from leasehold._url import StoreURL

SHORTEST = {"etcd": 3.0, "etcds": 3.0, "zookeeper": 4.0}
"""Seconds that a lease must have on stores that keep sessions, with their usual settings."""

SESSION, TICK = 30.0, 2.0
"""Seconds of a session with ZooKeeper where the URL does not say, and of a tick by which it may end too late."""


def default_lease(url: StoreURL) -> float:
    """Return a lease as short as the store can keep: faults are measured in leases, so more of them fit into a run."""
    return SHORTEST.get(url.scheme, 1.0)


def outlives(url: StoreURL, lease: float) -> float:
    """Return for how many seconds beyond its lease a dead client's hold may stay: until its session has ended."""
    if not url.scheme.startswith("zookeeper"):
        return 0.0
    session = float(url.options.get("session_timeout", SESSION))
    return max(0.0, session - lease) + TICK

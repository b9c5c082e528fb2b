"""The shortest lease of each store, and how long the hold of a dead client may outlive its lease."""

from __future__ import annotations

from leasehold._url import StoreURL

SHORTEST = {"etcd": 3.0, "etcds": 3.0, "zookeeper": 4.0}
"""The shortest lease, in seconds, on stores with sessions, with their usual settings."""

SESSION, TICK = 30.0, 2.0
"""Seconds of a ZooKeeper session where the URL sets none, and of a tick by which the session may end late."""


def default_lease(url: StoreURL) -> float:
    """Return the shortest lease of the store: faults are measured in leases, so a run has room for more of them."""
    return SHORTEST.get(url.scheme, 1.0)


def outlives(url: StoreURL, lease: float) -> float:
    """Return for how many seconds a dead client's hold may outlive its lease: until its session has ended."""
    if not url.scheme.startswith("zookeeper"):
        return 0.0
    session = float(url.options.get("session_timeout", SESSION))
    return max(0.0, session - lease) + TICK

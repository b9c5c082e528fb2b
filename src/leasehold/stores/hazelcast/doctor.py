"""Checks of `leasehold doctor` on a cluster: its CP subsystem, its members, and the time to live of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leasehold._model import Finding, Severity
from leasehold.errors import Unsupported
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Driver
from leasehold.stores.hazelcast.connection.errors import WITH_CP
from leasehold.stores.hazelcast.sessions import PROBE, Session, Sessions

LONG = 60.0
"""Seconds of a session's time to live from which on a crash blocks others for long."""


async def diagnose(driver: Driver, sessions: Sessions, until: float) -> list[Finding]:
    """Check the cluster, and its CP group; name what a cluster without a CP subsystem lacks.

    Raises:
        StoreUnavailable: it does not answer.
    """
    try:
        return await sessions.in_group(lambda group: _with_cp(driver, sessions, group, until), until)
    except Unsupported:
        if not sessions.without_cp:
            raise
        return await _without_cp(driver, sessions.without_cp, until)


async def _with_cp(driver: Driver, sessions: Sessions, group: Any, until: float) -> list[Finding]:
    session = await sessions.current(until)
    start = sessions.now()
    await driver.ask(*requests.ownership(group, PROBE), until)
    latency = sessions.now() - start
    members = await driver.members(until)
    return [
        _version(members),
        Finding(Severity.OK, "CP group", f"{group.name}, number {group.id}"),
        _members(len(members)),
        _time_to_live(session),
        Finding(
            Severity.NOTE,
            "CP persistence",
            "unknown: the members do not report it",
            "without it, a CP group whose majority is lost must be reset, and tokens begin again at 1",
            "run at least 3 CP members on hosts that do not fail together",
        ),
        Finding(Severity.OK, "round trip to the leader", f"{latency * 1000:.1f} ms"),
    ]


async def _without_cp(driver: Driver, why: str, until: float) -> list[Finding]:
    members = await driver.members(until)
    return [
        _version(members),
        Finding(
            Severity.ERROR,
            "CP subsystem",
            f"none: {why}",
            "all locks are refused here; those of an IMap are not taken instead, since each part of a split cluster "
            "gives them away",
            WITH_CP,
        ),
    ]


def _version(members: Iterable[Any]) -> Finding:
    versions = [getattr(member, "version", None) for member in members]
    numbers = {(one.major, one.minor, one.patch) for one in versions if one is not None}
    found = ", ".join(".".join(map(str, each)) for each in sorted(numbers))
    return Finding(Severity.OK, "version", found or "unknown")


def _members(count: int) -> Finding:
    if count >= 3:
        return Finding(Severity.OK, "members", str(count))
    return Finding(
        Severity.WARNING,
        "members",
        str(count),
        "CP needs a majority of its members; with fewer than 3, one that fails stops all locks",
        "run 3 members or more",
    )


def _time_to_live(session: Session) -> Finding:
    found = f"{session.ttl:g} s, a heartbeat each {session.interval:g} s"
    if session.ttl < LONG:
        return Finding(Severity.OK, "session time to live", found)
    return Finding(
        Severity.WARNING,
        "session time to live",
        found,
        f"the locks of a client that dies block others for {session.ttl:g} s",
        "lower session-time-to-live-seconds of the CP subsystem on all members, to 30 s for example",
    )

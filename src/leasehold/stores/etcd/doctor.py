"""What `leasehold doctor` says of an etcd cluster: its members, leader, alarms, space, and the least lease it keeps."""

from __future__ import annotations

from typing import Any

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Place, Unanswered, Unsent
from leasehold.stores.etcd.keys import Keys, only
from leasehold.stores.etcd.releases import faults_of, numbers

WITHIN = 5.0
"""Seconds that the cluster may take to answer each question."""

MEMBER_WITHIN = 1.0
"""Seconds that each member may take to say how it is."""

QUOTA = 2 * 1024**3
"""Bytes of the database at which etcd stops writing, unless told otherwise; it does not tell what it was told."""

FULL = 0.8

SLOW = 0.05
"""Seconds for a write that commits: beyond, a holder waits noticeably at each lock."""


async def diagnose(runtime: Runtime, gateway: Gateway, settings: Settings, keys: Keys) -> list[Finding]:
    """Look at the cluster.

    Raises:
        StoreUnavailable: it does not answer.
        Unsupported: it is too old.

    """
    latency = await _latency(runtime, gateway, keys)
    members = [await _member(gateway, place) for place in settings.places]
    return [
        Finding(Severity.OK, "etcd server", f"{settings.where}: {gateway.version}"),
        *_versions(gateway.version),
        *await _cluster(gateway, settings),
        *[finding for place, said in zip(settings.places, members, strict=True) for finding in _status(place, said)],
        *await _alarms(gateway),
        await _least_lease(gateway),
        _latency_found(latency),
        _security(settings),
    ]


def _versions(version: str) -> list[Finding]:
    """Say what this release lacks."""
    remedy = "run the latest release of 3.5, 3.6 or later on all members"
    found = [
        Finding(
            Severity.WARNING if one.breaks else Severity.NOTE,
            "etcd version",
            f"{version} lacks a change: etcd's {one.where}",
            one.fault,
            remedy,
        )
        for one in faults_of(version)
    ]
    if not found and numbers(version) < (3, 5, 0):
        found = [Finding(Severity.NOTE, "etcd version", version, "no longer maintained", remedy)]
    return found or [Finding(Severity.OK, "etcd version", version, "it has all changes on which locks rest")]


async def _cluster(gateway: Gateway, settings: Settings) -> list[Finding]:
    try:
        said = await gateway.call("/v3/cluster/member/list", {}, within=WITHIN)
    except StoreUnavailable as error:
        return [Finding(Severity.NOTE, "members", "not told", str(error))]
    members: list[dict[str, Any]] = said.get("members", [])
    voting = [member for member in members if not member.get("isLearner")]
    found = f"{len(voting)} voting" + (f", {len(members) - len(voting)} learning" if len(members) > len(voting) else "")
    if len(voting) < 3:
        meaning = "the loss of a member is the loss of all locks, and a crash may take back what was confirmed"
        return [Finding(Severity.WARNING, "members", found, meaning, "run three or five members on different machines")]
    if len(settings.places) < len(voting):
        meaning = f"only {len(settings.places)} of them are in the URL: if those fail, locks do, too"
        return [Finding(Severity.NOTE, "members", found, meaning, "name all of them in the URL")]
    return [Finding(Severity.OK, "members", found, f"locks survive the loss of {(len(voting) - 1) // 2}")]


async def _member(gateway: Gateway, place: Place) -> dict[str, Any] | str:
    try:
        return await gateway.at(place, "/v3/maintenance/status", {}, within=MEMBER_WITHIN)
    except (Unsent, Unanswered, Refused) as error:
        return str(error)


def _status(place: Place, said: dict[str, Any] | str) -> list[Finding]:
    subject = f"member {place}"
    if isinstance(said, str):
        if "permission denied" in said or "user name is empty" in said:
            return [Finding(Severity.NOTE, subject, "its status is not told to this user")]
        return [Finding(Severity.WARNING, subject, said, "one more failure may stop all locks", "look at this member")]
    leader = int(said.get("leader", 0))
    if not leader:
        meaning = "nothing can be acquired, renewed or released through it"
        return [Finding(Severity.ERROR, subject, "it knows no leader", meaning, "look whether a majority runs")]
    size, used = int(said.get("dbSize", 0)), int(said.get("dbSizeInUse", 0))
    is_leader = leader == int(said.get("header", {}).get("member_id", 0))
    role = "leader" if is_leader else "learner" if said.get("isLearner") else "follower"
    found = f"{role}, version {said.get('version')}, {used / 1e6:.1f} of {size / 1e6:.1f} MB in use"
    if size > FULL * QUOTA:
        meaning = "near the default quota of 2 GB, at which etcd refuses every acquire"
        return [Finding(Severity.WARNING, subject, found, meaning, "compact and defragment it, or raise its quota")]
    return [Finding(Severity.OK, subject, found)]


async def _alarms(gateway: Gateway) -> list[Finding]:
    try:
        said = await gateway.call("/v3/maintenance/alarm", {}, within=WITHIN)
    except StoreUnavailable:
        return [Finding(Severity.NOTE, "alarms", "not told to this user", "", "ask an administrator")]
    alarms = [str(alarm.get("alarm")) for alarm in said.get("alarms", [])]
    if not alarms:
        return [Finding(Severity.OK, "alarms", "none")]
    meaning = "nothing can be acquired; what is held can be renewed and released"
    remedy = "compact, `etcdctl defrag`, then `etcdctl alarm disarm`"
    return [Finding(Severity.ERROR, "alarms", ", ".join(alarms), meaning, remedy)]


async def _least_lease(gateway: Gateway) -> Finding:
    try:
        said = await gateway.call("/v3/lease/grant", {"TTL": "1"}, within=WITHIN)
        await gateway.call("/v3/lease/revoke", {"ID": said["ID"]}, within=WITHIN)
    except (StoreUnavailable, Refused) as error:
        return Finding(Severity.WARNING, "least lease", "none could be granted", str(error))
    least = int(said["TTL"])
    meaning = "a shorter lease= is lengthened to this: it is one and a half election timeouts, in whole seconds"
    return Finding(Severity.OK, "least lease", f"{least} s", meaning)


async def _latency(runtime: Runtime, gateway: Gateway, keys: Keys) -> float:
    """Return seconds for a deletion of nothing, which the leader commits as any write; the fastest of three."""
    best = float("inf")
    for _ in range(3):
        sent = runtime.now()
        await gateway.call("/v3/kv/deleterange", only(f"{keys.graves}doctor"), within=WITHIN)
        best = min(best, runtime.now() - sent)
    return best


def _latency_found(latency: float) -> Finding:
    found = f"{latency * 1000:.1f} ms for a write"
    if latency > SLOW:
        meaning = "each acquire and each release takes at least so long"
        return Finding(Severity.WARNING, "latency", found, meaning, "give etcd a fast disk, and look at the network")
    return Finding(Severity.OK, "latency", found)


def _security(settings: Settings) -> Finding:
    who = "by user and password" if settings.username else "as nobody"
    if not settings.encrypted:
        if settings.local:
            return Finding(Severity.OK, "connection", f"in clear, {who}, not leaving this host")
        meaning = "who can listen in reads all names" + (" and the password" if settings.username else "")
        return Finding(Severity.WARNING, "connection", f"in clear, {who}", meaning, "write etcds:// and serve TLS")
    return Finding(
        Severity.OK, "connection", f"TLS{', with a client certificate' if settings.certified else ''}, {who}"
    )

"""Checks of `leasehold doctor` on an etcd cluster: members, leader, alarms, space, and the shortest lease."""

from __future__ import annotations

from typing import Any

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Unanswered, Unsent
from leasehold.stores.etcd.keys import Keys, only
from leasehold.stores.etcd.releases import faults_of, numbers

WITHIN = 5.0
"""Seconds for each request."""

MEMBER_WITHIN = 1.0
"""Seconds for each member to report its status."""

QUOTA = 2 * 1024**3
"""Default size of the database in bytes at which etcd stops writing; etcd does not report the configured one."""

FULL = 0.8

SLOW = 0.05
"""Seconds for a committed write; above it each acquire takes noticeably long."""


async def diagnose(runtime: Runtime, gateway: Gateway, settings: Settings, keys: Keys) -> list[Finding]:
    """Check the cluster.

    Raises:
        StoreUnavailable: it does not respond.
        Unsupported: it is too old.

    """
    latency = await _latency(runtime, gateway, keys)
    members = [await _member(gateway, endpoint) for endpoint in settings.endpoints]
    return [
        Finding(Severity.OK, "etcd server", f"{settings.where}: {gateway.version}"),
        *_versions(gateway.version),
        *await _cluster(gateway, settings),
        *[
            finding
            for endpoint, response in zip(settings.endpoints, members, strict=True)
            for finding in _status(endpoint, response)
        ],
        *await _alarms(gateway),
        await _least_lease(gateway),
        _latency_found(latency),
        _security(settings),
    ]


def _versions(version: str) -> list[Finding]:
    """Return the findings about this release."""
    remedy = "run the latest release of 3.5, 3.6 or later on all members"
    found = [
        Finding(
            Severity.WARNING if one.breaks else Severity.NOTE,
            "etcd version",
            f"{version} lacks a fix: etcd's {one.where}",
            one.fault,
            remedy,
        )
        for one in faults_of(version)
    ]
    if not found and numbers(version) < (3, 5, 0):
        found = [Finding(Severity.NOTE, "etcd version", version, "no longer maintained", remedy)]
    return found or [Finding(Severity.OK, "etcd version", version, "it has all fixes that locks need")]


async def _cluster(gateway: Gateway, settings: Settings) -> list[Finding]:
    try:
        response = await gateway.call("/v3/cluster/member/list", {}, within=WITHIN)
    except StoreUnavailable as error:
        return [Finding(Severity.NOTE, "members", "unknown", str(error))]
    members: list[dict[str, Any]] = response.get("members", [])
    voting = [member for member in members if not member.get("isLearner")]
    found = f"{len(voting)} voting" + (f", {len(members) - len(voting)} learning" if len(members) > len(voting) else "")
    if len(voting) < 3:
        meaning = "losing one member makes all locks unavailable, and a crash may undo a confirmed acquire"
        return [Finding(Severity.WARNING, "members", found, meaning, "run three or five members on different machines")]
    if len(settings.endpoints) < len(voting):
        meaning = f"only {len(settings.endpoints)} of them are in the URL: if those fail, locks fail, too"
        return [Finding(Severity.NOTE, "members", found, meaning, "name all of them in the URL")]
    return [Finding(Severity.OK, "members", found, f"locks survive the loss of {(len(voting) - 1) // 2}")]


async def _member(gateway: Gateway, endpoint: Endpoint) -> dict[str, Any] | str:
    try:
        return await gateway.at(endpoint, "/v3/maintenance/status", {}, within=MEMBER_WITHIN)
    except (Unsent, Unanswered, Refused) as error:
        return str(error)


def _status(endpoint: Endpoint, response: dict[str, Any] | str) -> list[Finding]:
    subject = f"member {endpoint}"
    if isinstance(response, str):
        if "permission denied" in response or "user name is empty" in response:
            return [Finding(Severity.NOTE, subject, "this user may not read its status")]
        return [
            Finding(Severity.WARNING, subject, response, "one more failure may stop all locks", "check this member")
        ]
    leader = int(response.get("leader", 0))
    if not leader:
        meaning = "nothing can be acquired, renewed or released through it"
        return [
            Finding(Severity.ERROR, subject, "it knows no leader", meaning, "check that a majority of members runs")
        ]
    size, used = int(response.get("dbSize", 0)), int(response.get("dbSizeInUse", 0))
    is_leader = leader == int(response.get("header", {}).get("member_id", 0))
    role = "leader" if is_leader else "learner" if response.get("isLearner") else "follower"
    found = f"{role}, version {response.get('version')}, {used / 1e6:.1f} of {size / 1e6:.1f} MB in use"
    if size > FULL * QUOTA:
        meaning = "near the default quota of 2 GB, at which etcd refuses every acquire"
        return [Finding(Severity.WARNING, subject, found, meaning, "compact and defragment it, or raise its quota")]
    return [Finding(Severity.OK, subject, found)]


async def _alarms(gateway: Gateway) -> list[Finding]:
    try:
        response = await gateway.call("/v3/maintenance/alarm", {}, within=WITHIN)
    except StoreUnavailable:
        return [Finding(Severity.NOTE, "alarms", "this user may not read them", "", "ask an administrator")]
    alarms = [str(alarm.get("alarm")) for alarm in response.get("alarms", [])]
    if not alarms:
        return [Finding(Severity.OK, "alarms", "none")]
    meaning = "nothing can be acquired; what is held can be renewed and released"
    remedy = "compact, `etcdctl defrag`, then `etcdctl alarm disarm`"
    return [Finding(Severity.ERROR, "alarms", ", ".join(alarms), meaning, remedy)]


async def _least_lease(gateway: Gateway) -> Finding:
    try:
        response = await gateway.call("/v3/lease/grant", {"TTL": "1"}, within=WITHIN)
        await gateway.call("/v3/lease/revoke", {"ID": response["ID"]}, within=WITHIN)
    except (StoreUnavailable, Refused) as error:
        return Finding(Severity.WARNING, "shortest lease", "none could be granted", str(error))
    least = int(response["TTL"])
    meaning = "a shorter lease= becomes this: one and a half election timeouts, in whole seconds"
    return Finding(Severity.OK, "shortest lease", f"{least} s", meaning)


async def _latency(runtime: Runtime, gateway: Gateway, keys: Keys) -> float:
    """Return the seconds of the fastest of three writes: deletions of a missing key, which the leader commits."""
    best = float("inf")
    for _ in range(3):
        sent = runtime.now()
        await gateway.call("/v3/kv/deleterange", only(f"{keys.tombstones}doctor"), within=WITHIN)
        best = min(best, runtime.now() - sent)
    return best


def _latency_found(latency: float) -> Finding:
    found = f"{latency * 1000:.1f} ms for a write"
    if latency > SLOW:
        meaning = "each acquire and each release takes at least this long"
        return Finding(Severity.WARNING, "latency", found, meaning, "give etcd a fast disk, and check the network")
    return Finding(Severity.OK, "latency", found)


def _security(settings: Settings) -> Finding:
    who = "user and password" if settings.username else "no user"
    if not settings.encrypted:
        if settings.local:
            return Finding(Severity.OK, "connection", f"no TLS, {who}, within this host")
        meaning = "whoever can read the network traffic sees all names" + (
            " and the password" if settings.username else ""
        )
        return Finding(Severity.WARNING, "connection", f"no TLS, {who}", meaning, "write etcds:// and serve TLS")
    return Finding(
        Severity.OK, "connection", f"TLS{', with a client certificate' if settings.certified else ''}, {who}"
    )

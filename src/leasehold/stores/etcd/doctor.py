"""Checks of `leasehold doctor` on an etcd cluster: release, members, leader, alarms, space, and the shortest lease."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Unanswered, Unsent
from leasehold.stores.etcd.keys import Json, Keys, only

WITHIN = 5.0
"""Seconds for each request."""

MEMBER_WITHIN = 1.0
"""Seconds for each member to report its status."""

QUOTA = 2 * 1024**3
"""Default size of the database in bytes at which etcd stops writing; etcd does not report the configured one."""

FULL = 0.8
"""Part of `QUOTA` above which a member is nearly full."""

SLOW = 0.05
"""Seconds for a committed write; above it each acquire takes noticeably long."""

Ask = Callable[[str, Json], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fault of etcd that no client can avoid, and its fix.

    Attributes:
        fault: what may happen without the fix.
        breaks: whether a promise of locks is broken then.
        since: the first patch release with the fix, by minor release; a missing minor release never had the fault.
        where: the pull request, or the issue, in etcd's repository.
    """

    fault: str
    breaks: bool
    since: Mapping[tuple[int, int], int]
    where: str

    def affects(self, version: str) -> bool:
        """Return whether a release has the fault."""
        major, minor, patch = numbers(version)
        first = self.since.get((major, minor))
        return first is not None and patch < first


FIXES = (
    Fix(
        "a leader whose disk stalls may end leases that another leader has renewed, so two may hold",
        True,
        {(3, 4): 31, (3, 5): 13},
        "issue 15247",
    ),
    Fix(
        "a lease may end though etcd has just confirmed its renewal, so two may hold",
        True,
        {(3, 4): 38, (3, 5): 23, (3, 6): 5},
        "pull request 20616",
    ),
    Fix(
        "members may come to differ after a crash, so tokens may go back",
        True,
        {(3, 5): 3},
        "pull request 13908",
    ),
    Fix(
        "reads may be stale after a member was stopped; locks do not depend on reads",
        False,
        {(3, 4): 42, (3, 5): 28, (3, 6): 9},
        "issue 20418",
    ),
)


async def diagnose(runtime: Runtime, gateway: Gateway, settings: Settings, keys: Keys) -> list[Finding]:
    """Check the cluster.

    Raises:
        StoreUnavailable: it does not respond.
        Unsupported: it is too old.
    """

    async def ask(path: str, body: Json) -> Json:
        return await gateway.call(path, body, runtime.now() + WITHIN)

    latency = await _latency(runtime, ask, keys)
    members = [_status(endpoint, await _member(runtime, gateway, endpoint)) for endpoint in settings.endpoints]
    return [
        Finding(Severity.OK, "etcd server", f"{settings.where}: {gateway.version}"),
        *_versions(gateway.version),
        await _cluster(ask, settings),
        *members,
        await _alarms(ask),
        await _least_lease(ask),
        latency,
        _security(settings),
    ]


def numbers(version: str) -> tuple[int, int, int]:
    """Parse a version; a missing part is 0."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def _versions(version: str) -> list[Finding]:
    remedy = "run the latest release of 3.5, 3.6 or later on all members"
    found = [
        Finding(
            Severity.WARNING if one.breaks else Severity.NOTE,
            "etcd version",
            f"{version} lacks a fix: etcd's {one.where}",
            one.fault,
            remedy,
        )
        for one in FIXES
        if one.affects(version)
    ]
    if not found and numbers(version) < (3, 5, 0):
        found = [Finding(Severity.NOTE, "etcd version", version, "no longer maintained", remedy)]
    return found or [Finding(Severity.OK, "etcd version", version, "it has all fixes that locks need")]


async def _cluster(ask: Ask, settings: Settings) -> Finding:
    try:
        response = await ask("/v3/cluster/member/list", {})
    except StoreUnavailable as error:
        return Finding(Severity.NOTE, "members", "unknown", str(error))
    members: list[Json] = response.get("members", [])
    voting = [member for member in members if not member.get("isLearner")]
    found = f"{len(voting)} voting" + (f", {len(members) - len(voting)} learning" if len(members) > len(voting) else "")
    if len(voting) < 3:
        meaning = "losing one member makes all locks unavailable, and a crash may undo a confirmed acquire"
        return Finding(Severity.WARNING, "members", found, meaning, "run three or five members on different machines")
    if len(settings.endpoints) < len(voting):
        meaning = f"only {len(settings.endpoints)} of them are in the URL: if those fail, locks fail, too"
        return Finding(Severity.NOTE, "members", found, meaning, "name all of them in the URL")
    return Finding(Severity.OK, "members", found, f"locks survive the loss of {(len(voting) - 1) // 2}")


async def _member(runtime: Runtime, gateway: Gateway, endpoint: Endpoint) -> Json | str:
    try:
        return await gateway.at(endpoint, "/v3/maintenance/status", runtime.now() + MEMBER_WITHIN)
    except (Unsent, Unanswered, Refused) as error:
        return str(error)


def _status(endpoint: Endpoint, response: Json | str) -> Finding:
    subject = f"member {endpoint}"
    if isinstance(response, str):
        if "permission denied" in response or "user name is empty" in response:
            return Finding(Severity.NOTE, subject, "this user may not read its status")
        meaning = "one more failure may stop all locks"
        return Finding(Severity.WARNING, subject, response, meaning, "check this member")
    leader = int(response.get("leader", 0))
    if not leader:
        meaning = "nothing can be acquired, renewed or released through it"
        remedy = "check that a majority of members runs"
        return Finding(Severity.ERROR, subject, "it knows no leader", meaning, remedy)
    size, used = int(response.get("dbSize", 0)), int(response.get("dbSizeInUse", 0))
    is_leader = leader == int(response.get("header", {}).get("member_id", 0))
    role = "leader" if is_leader else "learner" if response.get("isLearner") else "follower"
    found = f"{role}, version {response.get('version')}, {used / 1e6:.1f} of {size / 1e6:.1f} MB in use"
    if size > FULL * QUOTA:
        meaning = "near the default quota of 2 GB, at which etcd refuses every acquire"
        return Finding(Severity.WARNING, subject, found, meaning, "compact and defragment it, or raise its quota")
    return Finding(Severity.OK, subject, found)


async def _alarms(ask: Ask) -> Finding:
    try:
        response = await ask("/v3/maintenance/alarm", {})
    except StoreUnavailable:
        return Finding(Severity.NOTE, "alarms", "this user may not read them", "", "ask an administrator")
    alarms = [str(alarm.get("alarm")) for alarm in response.get("alarms", [])]
    if not alarms:
        return Finding(Severity.OK, "alarms", "none")
    meaning = "nothing can be acquired; what is held can be renewed and released"
    remedy = "compact, `etcdctl defrag`, then `etcdctl alarm disarm`"
    return Finding(Severity.ERROR, "alarms", ", ".join(alarms), meaning, remedy)


async def _least_lease(ask: Ask) -> Finding:
    try:
        response = await ask("/v3/lease/grant", {"TTL": "1"})
        await ask("/v3/lease/revoke", {"ID": response["ID"]})
    except (StoreUnavailable, Refused) as error:
        return Finding(Severity.WARNING, "shortest lease", "none could be granted", str(error))
    meaning = "a shorter lease= becomes this: one and a half election timeouts, in whole seconds"
    return Finding(Severity.OK, "shortest lease", f"{int(response['TTL'])} s", meaning)


async def _latency(runtime: Runtime, ask: Ask, keys: Keys) -> Finding:
    """Measure the fastest of three writes: deletions of a missing key, which the leader commits."""
    best = float("inf")
    for _ in range(3):
        sent = runtime.now()
        await ask("/v3/kv/deleterange", only(f"{keys.tombstones}doctor"))
        best = min(best, runtime.now() - sent)
    found = f"{best * 1000:.1f} ms for a write"
    if best > SLOW:
        meaning = "each acquire and each release takes at least this long"
        return Finding(Severity.WARNING, "latency", found, meaning, "give etcd a fast disk, and check the network")
    return Finding(Severity.OK, "latency", found)


def _security(settings: Settings) -> Finding:
    who = "user and password" if settings.username else "no user"
    if not settings.encrypted:
        if settings.local:
            return Finding(Severity.OK, "connection", f"no TLS, {who}, within this host")
        seen = "all names and the password" if settings.username else "all names"
        meaning = f"any reader of the network traffic sees {seen}"
        return Finding(Severity.WARNING, "connection", f"no TLS, {who}", meaning, "write etcds:// and serve TLS")
    certificate = ", with a client certificate" if settings.certified else ""
    return Finding(Severity.OK, "connection", f"TLS{certificate}, {who}")

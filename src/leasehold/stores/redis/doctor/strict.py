"""The checks of `leasehold doctor` in strict mode: what else its promises need (docs/strict.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from leasehold._model import Finding, Severity
from leasehold.stores.redis.connection.base import ReplyError, Transport, pack
from leasehold.stores.redis.strict.quorum import Strict

OK, NOTE, WARNING, ERROR = Severity

WITHIN = 5.0
"""Seconds that the server may take to answer."""

ALONGSIDE = (
    "a primary that was cut off keeps renewing alongside its successor: two clients hold the lock (timed exclusion)"
)


async def state(transport: Transport, strict: Strict, marker: bytes) -> Finding:
    """Report on strict mode at one server: its quarantine, and whether enough replicas can acknowledge.

    Raises:
        StoreUnavailable: it does not answer.
    """
    asked = [pack(b"HMGET", marker, b"u"), pack(b"TIME"), pack(b"INFO", b"replication")]
    if strict.fsync:  # for no replica: it replies at once if the command is known and allowed
        asked.append(pack(b"WAITAOF", b"0", b"0", b"1"))
    known, time, info, *synced = await transport.call_all(asked, within=WITHIN)
    if any(isinstance(reply, ReplyError) for reply in (known, time, info)):
        lacking = "the user may not run these commands; strict mode needs +hmget +time +info +wait"
        return Finding(ERROR, "strict", "unknown", lacking, "grant these rights")
    if synced and isinstance(synced[0], ReplyError):
        return _unsynced(synced[0])
    left = 0.0 if known[0] is None else int(known[0]) / 1000 - int(time[0]) - int(time[1]) / 1e6
    listed = re.findall(r"^slave\d+:.*state=(\w+)", info.decode(), re.MULTILINE)
    online = listed.count("online")
    return state_finding(strict, online, left, marked=known[0] is not None, syncing=len(listed) - online)


def _unsynced(error: ReplyError) -> Finding:
    if error.code == "NOPERM":
        return Finding(ERROR, "strict", "lacks +waitaof", "nobody can acquire", "ACL SETUSER <user> +waitaof")
    meaning = "nobody can acquire: fsync=true needs WAITAOF"
    return Finding(ERROR, "strict", f"{error}", meaning, "leave out fsync=true, or use Redis 7.2 or later, or Valkey")


def state_finding(strict: Strict, connected: int, left: float, *, marked: bool, syncing: int = 0) -> Finding:
    """Rate the state of strict mode; ``left``: seconds of quarantine; ``syncing``: replicas in their full sync."""
    needed = strict.needed(connected)
    found = f"longest lease {strict.longest:g} s, {needed} of {connected} replicas must acknowledge a grant"
    if syncing:
        found += f"; {syncing} more in full sync"
    if needed > connected:
        meaning = "nobody can acquire: fewer replicas follow than must acknowledge"
        return Finding(ERROR, "strict", found, meaning, "look at the replicas (INFO replication), or lower replicas=")
    if left > 0:
        meaning = f"after a restart, failover or FLUSHALL nothing is granted for another {left:.1f} s"
        return Finding(NOTE, "strict", found, meaning, "wait")
    if not marked:
        meaning = "no client has acquired in this mode yet: the first acquire waits for one longest lease"
        return Finding(NOTE, "strict", found, meaning, "acquire a lock once")
    if connected and needed == 0:
        meaning = "a failover forgets grants, and their holders lose their locks"
        return Finding(WARNING, "strict", found, meaning, "replicas=1")
    return Finding(OK, "strict", found)


def adjusted(findings: Sequence[Finding], strict: Strict) -> list[Finding]:
    """Return the findings, rated anew: strict mode makes some harmless, and depends on others."""
    return [_adjust(finding, strict) for finding in findings]


def _adjust(finding: Finding, strict: Strict) -> Finding:
    match finding.subject:
        case "persistence" if strict.fsync and finding.severity is WARNING:
            meaning = "nobody can acquire: fsync=true waits for the disk, and the server does not write in time"
            remedy = "CONFIG SET appendonly yes, appendfsync always, also on the replicas"
            return replace(finding, severity=ERROR, meaning=meaning, remedy=remedy)
        case "persistence" if strict.fsync and finding.severity is NOTE:
            meaning = "each acquire waits up to a second for the next sync, and for that of the replicas"
            return replace(finding, meaning=meaning, remedy="CONFIG SET appendfsync always")
        case "persistence" if finding.severity is WARNING:
            meaning = (
                f"a restart forgets locks: holders lose them, and nothing is granted for {strict.longest:g} s; "
                "no lock has two holders, and tokens keep increasing"
            )
            return replace(finding, severity=NOTE, meaning=meaning)
        case "replicas" if finding.severity is WARNING:
            return replace(finding, severity=ERROR, meaning=ALONGSIDE)
        case "replicas" if finding.severity is NOTE:
            meaning = "a primary that was cut off stops up to 2 s after that lag; promote no replica before that"
            return replace(finding, meaning=f"{meaning} (timed exclusion)")
        case "split brain" if finding.severity is WARNING:
            return replace(finding, severity=ERROR, meaning=f"{finding.meaning}; strict mode depends on it")
        case "eviction" if finding.severity is NOTE:
            return replace(finding, severity=WARNING)
        case _:
            return finding

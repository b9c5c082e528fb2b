"""What `leasehold doctor` says in strict mode: what else must hold for its promise (docs/strict.md)."""

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

ALONGSIDE = "a primary that was cut off goes on renewing beside its successor: two hold the lock (S1)"


async def state(transport: Transport, strict: Strict, marker: bytes) -> Finding:
    """Say how strict mode stands on one server: is it in quarantine, and has it the replicas that must acknowledge.

    Raises:
        StoreUnavailable: it does not answer.

    """
    asked = [pack(b"HMGET", marker, b"u"), pack(b"TIME"), pack(b"INFO", b"replication")]
    if strict.fsync:
        asked.append(pack(b"WAITAOF", b"0", b"0", b"1"))  # for nothing: it answers at once, if it can be asked
    known, time, said, *synced = await transport.call_all(asked, within=WITHIN)
    if any(isinstance(reply, ReplyError) for reply in (known, time, said)):
        lacking = "its user may not ask for it; strict mode needs +hmget +time +info +wait"
        return Finding(ERROR, "strict", "unknown", lacking, "grant these rights")
    if synced and isinstance(synced[0], ReplyError):
        return _unsynced(synced[0])
    left = 0.0 if known[0] is None else int(known[0]) / 1000 - int(time[0]) - int(time[1]) / 1e6
    count = re.search(r"connected_slaves:(\d+)", said.decode())
    return judged_state(strict, int(count[1]) if count else 0, left, marked=known[0] is not None)


def _unsynced(said: ReplyError) -> Finding:
    if said.code == "NOPERM":
        return Finding(ERROR, "strict", "lacks +waitaof", "nobody can acquire (L)", "ACL SETUSER <user> +waitaof")
    meaning = "nobody can acquire: fsync=true needs WAITAOF (L)"
    return Finding(ERROR, "strict", f"{said}", meaning, "leave out fsync=true, or use Redis 7.2 or later, or Valkey")


def judged_state(strict: Strict, connected: int, left: float, *, marked: bool) -> Finding:
    """Judge it; ``left`` seconds of quarantine."""
    needed = strict.needed(connected)
    found = f"longest lease {strict.longest:g} s, {needed} of {connected} replicas must acknowledge a grant"
    if needed > connected:
        meaning = "nobody can acquire: fewer replicas follow than must acknowledge (L)"
        return Finding(ERROR, "strict", found, meaning, "look at the replicas (INFO replication), or lower replicas=")
    if left > 0:
        meaning = f"after a restart, failover or FLUSHALL nothing is granted for {left:.1f} s more (L)"
        return Finding(NOTE, "strict", found, meaning, "wait")
    if not marked:
        meaning = "nobody has claimed in this mode yet: the first claim waits for one longest lease (L)"
        return Finding(NOTE, "strict", found, meaning, "make the first claim")
    if connected and needed == 0:
        return Finding(WARNING, "strict", found, "a failover forgets grants, and their holders lose them", "replicas=1")
    return Finding(OK, "strict", found)


def judged(findings: Sequence[Finding], strict: Strict) -> list[Finding]:
    """Judge again what strict mode makes harmless, and what it counts on."""
    return [_again(finding, strict) for finding in findings]


def _again(finding: Finding, strict: Strict) -> Finding:
    match finding.subject:
        case "persistence" if strict.fsync and finding.severity is WARNING:
            meaning = "nobody can acquire: fsync=true waits for a disk that nothing is written to in time (L)"
            remedy = "CONFIG SET appendonly yes, appendfsync always, on the replicas likewise"
            return replace(finding, severity=ERROR, meaning=meaning, remedy=remedy)
        case "persistence" if strict.fsync and finding.severity is NOTE:
            meaning = "each acquire waits for the next sync, for up to a second, and for that of replicas (L)"
            return replace(finding, meaning=meaning, remedy="CONFIG SET appendfsync always")
        case "persistence" if finding.severity is WARNING:
            meaning = (
                f"a restart forgets locks: holders lose them, and nothing is granted for {strict.longest:g} s (L); "
                "no two hold one (S1), and tokens go on increasing (S0)"
            )
            return replace(finding, severity=NOTE, meaning=meaning)
        case "replicas" if finding.severity is WARNING:
            return replace(finding, severity=ERROR, meaning=ALONGSIDE)
        case "replicas" if finding.severity is NOTE:
            meaning = "a primary that was cut off stops after that lag; promote no replica before (S1)"
            return replace(finding, meaning=meaning)
        case "split brain" if finding.severity is WARNING:
            return replace(finding, severity=ERROR, meaning=f"{finding.meaning}; strict mode counts on it")
        case "eviction" if finding.severity is NOTE:
            return replace(finding, severity=WARNING)
        case _:
            return finding

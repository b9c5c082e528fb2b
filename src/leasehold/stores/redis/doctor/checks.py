"""What the facts about a Redis server mean for the promises: small checks, in the order in which people read.

The promises: S0 no write of an older holder after one of a newer (tokens); S1 two valid claims never overlap; S2 a
holder who lost the lock is told at once; L the lock is free again in bounded time, and no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from leasehold._model import Finding, Severity

OK, NOTE, WARNING, ERROR = Severity

SLOW = 0.05
"""Seconds for a round trip from which on it is worth a note."""

CLOCKS_APART = 60.0
"""Seconds between the server's clock and ours from which on it is worth a note."""

NEARLY_FULL = 0.9
"""Part of a limit from which on it is worth a warning."""

SMALL_BUFFER = 64 * 1024
"""Bytes; a subscriber's buffer below this may break under a burst of messages."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server told.

    Attributes:
        hello: what it said of itself at the handshake.
        info: the fields of INFO; None if we may not ask.
        config: the settings that we may see.
        lacking: access rules that our user lacks.
        latency: seconds for a round trip; None if we may not ask.
        ahead: seconds by which its wall clock is ahead of ours; likewise.
        local: the connection does not leave this host.

    """

    where: str
    hello: Mapping[str, str]
    info: Mapping[str, str] | None
    config: Mapping[str, str]
    lacking: Sequence[str] = ()
    latency: float | None = None
    ahead: float | None = None
    encrypted: bool = False
    verified: bool = False
    local: bool = True
    fields: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", self.info or {})

    def number(self, name: str) -> int:
        """Return a field of INFO, 0 if there is none."""
        text = self.fields.get(name, "")
        return int(text) if text.isdecimal() else 0

    def setting(self, name: str) -> int | None:
        """Return a setting that is a number; None if we may not see it."""
        text = self.config.get(name, "")
        return int(text) if text.isdecimal() else None


def server(facts: Facts) -> Finding:
    """Name kind and version: the handshake has refused those that are too old."""
    kind = next((kind for kind in ("valkey", "dragonfly", "keydb") if f"{kind}_version" in facts.fields), None)
    kind = kind or facts.hello.get("server", "redis")
    version = facts.fields.get(f"{kind}_version", facts.hello.get("version", "?"))
    found = f"{kind} {version}, {facts.hello.get('role', 'master')}, at {facts.where}"
    return Finding(OK, "server", found, "locks need Redis 6.2 or later, or Valkey, and never ask a replica")


def access(facts: Facts) -> Finding:
    """Name the rights that are missing."""
    lacking = list(facts.lacking)
    if not lacking:
        return Finding(OK, "rights", "all that locks need")
    if lacking == ["+scan"]:
        meaning = "locks work; names cannot be listed (`ls`, `holds`)"
        return Finding(NOTE, "rights", "lacks +scan", meaning, "ACL SETUSER <user> +scan")
    meaning = "locks fail, at the latest when somebody waits (L)"
    return Finding(ERROR, "rights", f"lacks {' '.join(lacking)}", meaning, f"ACL SETUSER <user> {' '.join(lacking)}")


def visible(facts: Facts) -> Finding | None:
    """Say what could not be looked at."""
    hidden = [] if facts.info is not None else ["+info"]
    hidden += [] if facts.config else ["+config|get"]
    if not hidden:
        return None
    what = "eviction, persistence, replicas" if facts.info is None else "some settings"
    remedy = f"for this check only: ACL SETUSER <user> {' '.join(hidden)}"
    return Finding(NOTE, "settings", f"we may not see them ({', '.join(hidden)})", f"{what}: unknown", remedy)


def eviction(facts: Facts) -> Finding | None:
    """Say whether the server may delete locks for want of memory."""
    if facts.info is None:
        return None
    policy, limit = facts.fields.get("maxmemory_policy", "noeviction"), facts.number("maxmemory")
    found = f"maxmemory-policy {policy}, maxmemory {limit or 'unlimited'}"
    if policy == "noeviction":
        return Finding(OK, "eviction", found, "no lock is evicted")
    which = "every lock may be evicted"
    if policy.startswith("volatile"):
        which = "locks are hit first, since every lock has a time to live"
    remedy = "CONFIG SET maxmemory-policy noeviction, or a server of its own for the locks"
    if not limit:
        return Finding(NOTE, "eviction", found, f"nothing is evicted without a limit; with one, {which}", remedy)
    gone = facts.number("evicted_keys")
    happened = f"; {gone} keys were evicted so far" if gone else ""
    meaning = f"when memory is full {which}, and two hold it until the first finds out (S1){happened}"
    return Finding(ERROR, "eviction", found, meaning, remedy)


def memory(facts: Facts) -> Finding | None:
    """Say whether acquiring is about to be refused."""
    limit, used = facts.number("maxmemory"), facts.number("used_memory")
    if not limit or used < limit * NEARLY_FULL:
        return None
    meaning = "when it is full nobody can acquire; renewing and releasing go on"
    return Finding(WARNING, "memory", f"{used * 100 // limit} % of maxmemory", meaning, "give it more memory")


def persistence(facts: Facts) -> Finding | None:
    """Say which locks a restart forgets."""
    if facts.info is None:
        return None
    tokens = "tokens go on increasing (S0)"
    remedy = "CONFIG SET appendonly yes, appendfsync always or everysec"
    if facts.number("aof_enabled"):
        return _append_only(facts.config.get("appendfsync"), tokens)
    if facts.config.get("save", "?") == "":
        meaning = f"a restart forgets all locks: others get them while their holders go on (S1); {tokens}"
        return Finding(WARNING, "persistence", "none", meaning, remedy)
    meaning = f"a crash forgets what came after the last snapshot: others get those locks (S1); {tokens}"
    return Finding(WARNING, "persistence", "snapshots only", meaning, remedy)


def _append_only(fsync: str | None, tokens: str) -> Finding:
    found = f"append-only file, appendfsync {fsync or 'unknown'}"
    match fsync:
        case "always":
            return Finding(OK, "persistence", found, "no lock is forgotten by a restart")
        case "no":
            meaning = f"a power loss forgets the last half minute of locks and more (S1); {tokens}"
            return Finding(WARNING, "persistence", found, meaning, "CONFIG SET appendfsync everysec, or always")
        case _:
            meaning = f"a power loss forgets the last 1 to 2 s of locks (S1), a crash of the server none; {tokens}"
            return Finding(NOTE, "persistence", found, meaning, "CONFIG SET appendfsync always, where that matters")


def disk(facts: Facts) -> Finding | None:
    """Say whether writing to the disk fails."""
    states = ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
    failed = [name for name in states if facts.fields.get(name, "ok") != "ok"]
    if not failed:
        return None
    meaning = "a server that cannot save refuses all writes (MISCONF): nobody can acquire"
    return Finding(ERROR, "disk", f"failed: {', '.join(failed)}", meaning, "look at the server's log and its disk")


def replicas(facts: Facts) -> Finding | None:
    """Say what a failover would lose."""
    if facts.info is None:
        return None
    count, least = facts.number("connected_slaves"), facts.setting("min-replicas-to-write")
    if not count:
        return Finding(OK, "replicas", "none", "there is no failover; while the server is down nobody can acquire (L)")
    lossy = "a failover loses grants that no replica has yet: two hold the lock until the first finds out (S1)"
    if least is None:
        return Finding(WARNING, "replicas", f"{count}", lossy, "let a person, not a monitor, promote a replica")
    found = f"{count}, min-replicas-to-write {least}"
    if least == 0:
        meaning = f"{lossy}; a primary that was cut off goes on granting"
        remedy = "CONFIG SET min-replicas-to-write 1, min-replicas-max-lag 10: it bounds the second, not the first"
        return Finding(WARNING, "replicas", found, meaning, remedy)
    found += f", min-replicas-max-lag {facts.config.get('min-replicas-max-lag', '?')}"
    return Finding(NOTE, "replicas", found, f"{lossy}; a primary that was cut off stops granting after that lag")


def idle(facts: Facts) -> Finding | None:
    """Say whether the server hangs up on those who say nothing."""
    timeout = facts.setting("timeout")
    if not timeout:
        return None
    meaning = "idle connections are closed; the next call opens a new one, or repeats its request. Waiters are spared"
    return Finding(NOTE, "idle connections", f"closed after {timeout} s", meaning, "CONFIG SET timeout 0")


def keepalive(facts: Facts) -> Finding | None:
    """Say whether dead clients are noticed."""
    every = facts.setting("tcp-keepalive")
    if every is None or 0 < every <= 600:
        return None
    found = f"tcp-keepalive {every}" if every else "tcp-keepalive off"
    meaning = "a waiter whose host vanished counts as one who listens: it may be given the lock, for its lease (L)"
    return Finding(WARNING, "dead clients", found, meaning, "CONFIG SET tcp-keepalive 300")


def buffers(facts: Facts) -> Finding | None:
    """Say whether subscribers are cut off under a burst."""
    words = facts.config.get("client-output-buffer-limit", "").split()
    if "pubsub" not in words:
        return None
    limits = words[words.index("pubsub") + 1 :][:2]
    smallest = min((int(limit) for limit in limits if limit.isdecimal() and int(limit)), default=None)
    if smallest is None or smallest >= SMALL_BUFFER:
        return None
    meaning = "waiters' connections break under a burst of messages: they wake late, at their next renewal at worst (L)"
    remedy = 'CONFIG SET client-output-buffer-limit "pubsub 32mb 8mb 60"'
    return Finding(WARNING, "message buffers", f"pubsub {smallest} bytes", meaning, remedy)


def clients(facts: Facts) -> Finding | None:
    """Say whether the server is about to refuse connections."""
    most, now = facts.number("maxclients") or facts.setting("maxclients"), facts.number("connected_clients")
    if not most or now < most * NEARLY_FULL:
        return None
    meaning = "when it is full, whoever must connect anew is refused, holders too (L, and leases are lost)"
    return Finding(WARNING, "connections", f"{now} of maxclients {most}", meaning, "raise maxclients")


def transport(facts: Facts) -> Finding:
    """Say who may listen on the way."""
    if facts.encrypted:
        if facts.verified:
            return Finding(OK, "transport", "TLS, certificate and host name verified")
        meaning = "somebody on the way can pose as the server and give one lock to two"
        return Finding(WARNING, "transport", "TLS, but who answers is not verified", meaning, "verify the certificate")
    if facts.local:
        return Finding(OK, "transport", "does not leave this host")
    meaning = "who can listen on the way sees password and names, and can forge replies"
    return Finding(NOTE, "transport", "not encrypted", meaning, "use rediss://, or a network that you trust")


def clock(facts: Facts) -> Finding | None:
    """Say how far the server's clock is from ours: leases do not depend on it, as long as it does not jump."""
    if facts.ahead is None:
        return None
    found = f"{abs(facts.ahead):.3f} s {'ahead of' if facts.ahead >= 0 else 'behind'} ours"
    severity = OK if abs(facts.ahead) < CLOCKS_APART else NOTE
    meaning = "no promise compares the two; but a jump of the server's clock ends or lengthens leases (S1)"
    return Finding(severity, "clock", found, meaning, "" if severity is OK else "let NTP slew both clocks")


def latency(facts: Facts) -> Finding | None:
    """Say how long a round trip takes."""
    if facts.latency is None:
        return None
    found = f"{facts.latency * 1000:.2f} ms for a round trip"
    if facts.latency < SLOW:
        return Finding(OK, "latency", found)
    meaning = "each acquire and each release takes one; a lease should be many times as long"
    return Finding(NOTE, "latency", found, meaning, "move it nearer, or look at SLOWLOG and at its load")


CHECKS: Sequence[Callable[[Facts], Finding | None]] = (
    server,
    access,
    visible,
    eviction,
    memory,
    persistence,
    disk,
    replicas,
    idle,
    keepalive,
    buffers,
    clients,
    transport,
    clock,
    latency,
)

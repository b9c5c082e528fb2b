"""The checks of `leasehold doctor` on one Redis server, in the order in which people read them.

Each finding says what a fact about the server means for the promises: fenced safety, timed exclusion, prompt loss
notice, liveness. They are defined in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leasehold._model import Finding, Severity

OK, NOTE, WARNING, ERROR = Severity

SLOW = 0.05
"""Seconds: a longer round trip is worth a note."""

CLOCKS_APART = 60.0
"""Seconds between the server's clock and ours: a larger difference is worth a note."""

NEARLY_FULL = 0.9
"""Part of a limit: more use is worth a warning."""

SMALL_BUFFER = 64 * 1024
"""Bytes: a smaller buffer may end a subscription in a burst of messages."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the server.

    Attributes:
        hello: its reply at the handshake.
        info: the fields of INFO; None without the right to INFO.
        config: the settings that the user may read.
        lacking: access rules that the user lacks.
        latency: seconds for a round trip; None without the right to TIME.
        ahead: seconds by which its wall clock is ahead of ours; None likewise.
        local: whether the connection stays on this host.
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

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of INFO that are known."""
        return self.info or {}

    def number(self, name: str) -> int:
        """Return a field of INFO, 0 if there is none."""
        return number(self.fields, name) or 0

    def setting(self, name: str) -> int | None:
        """Return a setting that is a number; None if the user may not read it."""
        return number(self.config, name)


def number(values: Mapping[str, str], name: str) -> int | None:
    """Return a value that is a number; None if it is not known."""
    text = values.get(name, "")
    return int(text) if text.isdecimal() else None


def server(facts: Facts) -> Finding:
    """Name kind and version; the handshake has refused old versions."""
    kind = next((kind for kind in ("valkey", "dragonfly", "keydb") if f"{kind}_version" in facts.fields), None)
    kind = kind or facts.hello.get("server", "redis")
    version = facts.fields.get(f"{kind}_version", facts.hello.get("version", "?"))
    found = f"{kind} {version}, {facts.hello.get('role', 'master')}, at {facts.where}"
    return Finding(OK, "server", found, "locks need Redis 6.2 or later, or Valkey, and never use a replica")


def access(facts: Facts) -> Finding:
    """Name the missing rights."""
    lacking = list(facts.lacking)
    if not lacking:
        return Finding(OK, "rights", "all that locks need")
    if lacking == ["+scan"]:
        meaning = "locks work; names cannot be listed (`ls`, `holds`)"
        return Finding(NOTE, "rights", "lacks +scan", meaning, "ACL SETUSER <user> +scan")
    meaning = "locks fail, at the latest when a client waits for one (liveness)"
    return Finding(ERROR, "rights", f"lacks {' '.join(lacking)}", meaning, f"ACL SETUSER <user> {' '.join(lacking)}")


def visible(facts: Facts) -> Finding | None:
    """Name what could not be checked."""
    hidden = [] if facts.info is not None else ["+info"]
    hidden += [] if facts.config else ["+config|get"]
    if not hidden:
        return None
    what = "eviction, persistence, replicas" if facts.info is None else "some settings"
    remedy = f"for this check only: ACL SETUSER <user> {' '.join(hidden)}"
    return Finding(NOTE, "settings", f"the user may not read them ({', '.join(hidden)})", f"{what}: unknown", remedy)


def eviction(facts: Facts) -> Finding | None:
    """Check whether the server may delete locks when memory is full."""
    if facts.info is None:
        return None
    policy, limit = facts.fields.get("maxmemory_policy", "noeviction"), facts.number("maxmemory")
    found = f"maxmemory-policy {policy}, maxmemory {limit or 'unlimited'}"
    if policy == "noeviction":
        return Finding(OK, "eviction", found, "no lock is evicted")
    which = "every lock may be evicted"
    if policy.startswith("volatile"):
        which = "locks are evicted first, since every lock has a time to live"
    remedy = "CONFIG SET maxmemory-policy noeviction, or use a separate server for locks"
    if not limit:
        return Finding(NOTE, "eviction", found, f"nothing is evicted without a memory limit; with one, {which}", remedy)
    meaning = f"when memory is full {which}: two clients hold one until the first learns of it (timed exclusion)"
    if gone := facts.number("evicted_keys"):
        meaning += f"; {gone} keys were evicted so far"
    return Finding(ERROR, "eviction", found, meaning, remedy)


def memory(facts: Facts) -> Finding | None:
    """Check whether acquires are about to be refused."""
    limit, used = facts.number("maxmemory"), facts.number("used_memory")
    if not limit or used < limit * NEARLY_FULL:
        return None
    meaning = "when it is full nobody can acquire; renewals and releases still work"
    return Finding(WARNING, "memory", f"{used * 100 // limit} % of maxmemory", meaning, "give it more memory")


def persistence(facts: Facts) -> Finding | None:
    """Check which locks a restart forgets."""
    if facts.info is None:
        return None
    tokens = "tokens keep increasing (fenced safety)"
    remedy = "CONFIG SET appendonly yes, appendfsync always or everysec"
    if facts.number("aof_enabled"):
        return _append_only(facts.config.get("appendfsync"), tokens)
    if facts.config.get("save", "?") == "":
        meaning = "a restart forgets all locks: others acquire them while their holders work on (timed exclusion)"
        return Finding(WARNING, "persistence", "none", f"{meaning}; {tokens}", remedy)
    meaning = f"a crash forgets locks newer than the last snapshot: others acquire them (timed exclusion); {tokens}"
    return Finding(WARNING, "persistence", "snapshots only", meaning, remedy)


def _append_only(fsync: str | None, tokens: str) -> Finding:
    found = f"append-only file, appendfsync {fsync or 'unknown'}"
    match fsync:
        case "always":
            return Finding(OK, "persistence", found, "no lock is forgotten by a restart")
        case "no":
            meaning = f"a power loss forgets locks of the last half minute or more (timed exclusion); {tokens}"
            return Finding(WARNING, "persistence", found, meaning, "CONFIG SET appendfsync everysec, or always")
        case _:
            meaning = "a power loss forgets locks of the last 1 to 2 s (timed exclusion), a server crash none"
            remedy = "CONFIG SET appendfsync always, where that matters"
            return Finding(NOTE, "persistence", found, f"{meaning}; {tokens}", remedy)


def disk(facts: Facts) -> Finding | None:
    """Check whether writes to the disk fail."""
    states = ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
    failed = [name for name in states if facts.fields.get(name, "ok") != "ok"]
    if not failed:
        return None
    meaning = "a server that cannot save refuses all writes (MISCONF): nobody can acquire"
    return Finding(ERROR, "disk", f"failed: {', '.join(failed)}", meaning, "check the server's log and its disk")


def replicas(facts: Facts) -> Finding | None:
    """Check what a failover would lose."""
    if facts.info is None:
        return None
    count, least = facts.number("connected_slaves"), facts.setting("min-replicas-to-write")
    if not count:
        meaning = "there is no failover; while the server is down nobody can acquire (liveness)"
        return Finding(OK, "replicas", "none", meaning)
    lossy = "a failover loses grants that no replica has: two hold one until the first learns of it (timed exclusion)"
    if least is None:
        return Finding(WARNING, "replicas", f"{count}", lossy, "let a person, not a monitor, promote a replica")
    found = f"{count}, min-replicas-to-write {least}"
    if least == 0:
        meaning = f"{lossy}; a primary that was cut off keeps granting"
        remedy = "CONFIG SET min-replicas-to-write 1, min-replicas-max-lag 10: it bounds the second, not the first"
        return Finding(WARNING, "replicas", found, meaning, remedy)
    found += f", min-replicas-max-lag {facts.config.get('min-replicas-max-lag', '?')}"
    meaning = f"{lossy}; a primary that was cut off stops granting up to 2 s after that lag"
    return Finding(NOTE, "replicas", found, meaning)


def idle(facts: Facts) -> Finding | None:
    """Check whether the server closes idle connections."""
    timeout = facts.setting("timeout")
    if not timeout:
        return None
    meaning = "idle connections are closed; the next call opens a new one, or repeats its request"
    found = f"closed after {timeout} s"
    return Finding(NOTE, "idle connections", found, f"{meaning}; waiters are unaffected", "CONFIG SET timeout 0")


def keepalive(facts: Facts) -> Finding | None:
    """Check whether dead clients are noticed."""
    every = facts.setting("tcp-keepalive")
    if every is None or 0 < every <= 600:
        return None
    found = f"tcp-keepalive {every}" if every else "tcp-keepalive off"
    meaning = "a waiter whose host vanished still counts as subscribed: it may get the lock, for its lease (liveness)"
    return Finding(WARNING, "dead clients", found, meaning, "CONFIG SET tcp-keepalive 300")


def buffers(facts: Facts) -> Finding | None:
    """Check whether a burst of messages ends subscriptions."""
    fields_of_limit = facts.config.get("client-output-buffer-limit", "").split()
    if "pubsub" not in fields_of_limit:
        return None
    limits = fields_of_limit[fields_of_limit.index("pubsub") + 1 :][:2]
    smallest = min((int(limit) for limit in limits if limit.isdecimal() and int(limit)), default=None)
    if smallest is None or smallest >= SMALL_BUFFER:
        return None
    meaning = "a burst closes waiters' connections: they wake late, at worst at their next renewal (liveness)"
    remedy = 'CONFIG SET client-output-buffer-limit "pubsub 32mb 8mb 60"'
    return Finding(WARNING, "message buffers", f"pubsub {smallest} bytes", meaning, remedy)


def clients(facts: Facts) -> Finding | None:
    """Check whether the server is about to refuse connections."""
    most, now = facts.number("maxclients") or facts.setting("maxclients"), facts.number("connected_clients")
    if not most or now < most * NEARLY_FULL:
        return None
    meaning = "when it is full, new connections are refused, those of holders too: their leases are lost (liveness)"
    return Finding(WARNING, "connections", f"{now} of maxclients {most}", meaning, "raise maxclients")


def transport(facts: Facts) -> Finding:
    """Check whether the connection is protected."""
    if facts.encrypted:
        if facts.verified:
            return Finding(OK, "transport", "TLS, certificate and host name verified")
        meaning = "an attacker on the network can pose as the server and grant one lock to two clients"
        return Finding(WARNING, "transport", "TLS, but the server is not verified", meaning, "verify the certificate")
    if facts.local:
        return Finding(OK, "transport", "stays on this host")
    meaning = "an attacker on the network can read password and names, and can forge replies"
    return Finding(NOTE, "transport", "not encrypted", meaning, "use rediss://, or a trusted network")


def clock(facts: Facts) -> Finding | None:
    """Compare the server's clock with ours; the difference is harmless, a step of the clock is not."""
    if facts.ahead is None:
        return None
    found = f"{abs(facts.ahead):.3f} s {'ahead of' if facts.ahead >= 0 else 'behind'} ours"
    severity = OK if abs(facts.ahead) < CLOCKS_APART else NOTE
    meaning = "clock difference is harmless, but stepping the server's clock can end or extend leases (timed exclusion)"
    return Finding(severity, "clock", found, meaning, "" if severity is OK else "let NTP slew both clocks")


def latency(facts: Facts) -> Finding | None:
    """Check how long a round trip takes."""
    if facts.latency is None:
        return None
    found = f"{facts.latency * 1000:.2f} ms for a round trip"
    if facts.latency < SLOW:
        return Finding(OK, "latency", found)
    meaning = "each acquire and each release takes one; a lease should be many times longer"
    return Finding(NOTE, "latency", found, meaning, "move it nearer, or check SLOWLOG and its load")


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

"""A model of etcd's state: keys with revisions, leases, transactions, compaction; by the requests of its JSON gateway.

A cluster has one history, which Raft makes of what its members are asked; so there is one state for all of them
(``etcd_members.py``). A new leader counts all leases anew; one that was replaced may not know it yet
(``etcd_leaders.py``). An error or an option that the model does not know is an
error of the model's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold_lab.runtimes.virtual import Scheduler
from models.net import ServerClock

Json = dict[str, Any]

LEAST_TTL = 2
"""Seconds: of etcd with its usual timers (one and a half times the election timeout, as whole seconds)."""

LATE = 0.5
"""Seconds that etcd may take to notice that a lease has run out (``lease.Lessor`` looks twice a second)."""

NO_LEASE = "etcdserver: requested lease not found"
EXISTS = "etcdserver: lease already exists"


@dataclass(frozen=True, slots=True)
class Pair:
    """A key and what is known of it."""

    key: bytes
    value: bytes = b""
    created: int = 0
    written: int = 0
    version: int = 0
    lease: int = 0


@dataclass(slots=True)
class Lease:
    """A lease: its length and its end by the cluster's clock, both in seconds."""

    ttl: int
    ends: float


class Error(Exception):
    """An error that etcd answers with, and its HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(eq=False)
class Cluster:
    """The state on which all members agree."""

    clock: ServerClock
    revision: int = 1
    compacted: int = 0
    pairs: dict[bytes, Pair] = field(default_factory=dict[bytes, Pair])
    leases: dict[int, Lease] = field(default_factory=dict[int, Lease])
    deletions: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    tell: Callable[[int, Sequence[bytes]], None] = lambda revision, keys: None
    no_leader_until: float = 0.0
    term: int = 1

    @property
    def scheduler(self) -> Scheduler:
        """What orders its history."""
        return self.clock.scheduler

    def now(self) -> float:
        """Read its clock, in seconds."""
        return self.clock.now_us() / 1e6

    # --- keys --------------------------------------------------------------------------------------------------

    def find(self, where: Json) -> list[Pair]:
        """Return the pairs that a request names, in order of key."""
        key = data_of(where["key"])
        if "range_end" not in where:
            pair = self.pairs.get(key)
            return [] if pair is None else [pair]
        end = data_of(where["range_end"])
        return [self.pairs[one] for one in sorted(self.pairs) if within(one, key, end)]

    def range(self, body: Json) -> Json:
        """Read keys."""
        known(body, "key", "range_end", "sort_order", "sort_target", "limit", "keys_only", "max_create_revision")
        found = self.find(body)
        answer: Json = {"count": str(len(found))} if found else {}
        if "max_create_revision" in body:
            found = [pair for pair in found if pair.created <= int(body["max_create_revision"])]
        if body.get("sort_target") == "CREATE":
            found.sort(key=lambda pair: pair.created, reverse=body["sort_order"] == "DESCEND")
        limit = int(body.get("limit", 0))
        some = found[:limit] if limit else found
        if some:
            answer["kvs"] = [_shown(replace(pair, value=b"") if body.get("keys_only") else pair) for pair in some]
        return answer | ({"more": True} if len(some) < len(found) else {})

    def transact(self, body: Json) -> Json:
        """Carry out a transaction; its writes have one revision."""
        known(body, "compare", "success", "failure")
        fits = all(map(self._fits, body["compare"]))
        operations: list[Json] = body["success" if fits else "failure"]
        puts = [one["request_put"] for one in operations if "request_put" in one]
        if any(int(put.get("lease", 0)) not in {0, *self.leases} for put in puts):
            raise Error(NO_LEASE, 404)
        writing = _Writing(self)
        responses = [self._operate(one, writing) for one in operations]
        writing.end()
        answer: Json = {"header": self.header()} | ({"succeeded": True} if fits else {})
        return answer | ({"responses": responses} if responses else {})

    def _fits(self, compare: Json) -> bool:
        attribute = {"CREATE": "created", "MOD": "written", "VERSION": "version"}[compare["target"]]
        given = int(
            compare[{"CREATE": "create_revision", "MOD": "mod_revision", "VERSION": "version"}[compare["target"]]]
        )
        found = [int(getattr(pair, attribute)) for pair in self.find(compare)] or [0]
        if compare["result"] == "LESS":
            return all(value < given for value in found)
        assert compare["result"] == "EQUAL"
        return all(value == given for value in found)

    def _operate(self, operation: Json, writing: _Writing) -> Json:
        ((kind, body),) = operation.items()
        match kind:
            case "request_range":
                return {"response_range": self.range(body)}
            case "request_put":
                known(body, "key", "value", "lease")
                writing.put(data_of(body["key"]), data_of(body["value"]), int(body.get("lease", 0)))
                return {"response_put": {}}
            case "request_delete_range":
                keys = [pair.key for pair in self.find(body)]
                writing.delete(keys)
                return {"response_delete_range": {"deleted": str(len(keys))} if keys else {}}
        raise NotImplementedError(f"the model of etcd has no {kind}")

    def header(self) -> Json:
        """Return what each answer begins with."""
        return {"revision": str(self.revision), "raft_term": str(self.term)}

    def compact(self) -> None:
        """Forget the history up to now."""
        self.compacted = self.revision
        self.deletions.clear()

    # --- leases ------------------------------------------------------------------------------------------------

    def grant(self, lease: int, ttl: int) -> Json:
        """Grant a lease, for 0 under an id of the cluster's choice."""
        lease = lease or self.scheduler.random.getrandbits(62)
        if lease in self.leases:
            raise Error(EXISTS, 412)
        ttl = max(ttl, LEAST_TTL)
        self.leases[lease] = Lease(ttl, self.now() + ttl)
        self._expire_later(lease)
        return {"header": self.header(), "ID": str(lease), "TTL": str(ttl)}

    def keep_alive(self, lease: int) -> Json:
        """Set a lease to its full length."""
        found = self.leases.get(lease)
        answer: Json = {"header": self.header(), "ID": str(lease)}
        if found is None or found.ends <= self.now():
            return {"result": answer}
        found.ends = self.now() + found.ttl
        return {"result": {**answer, "TTL": str(found.ttl)}}

    def time_to_live(self, lease: int) -> Json:
        """Say what is left of a lease, in whole seconds; -1 if there is none."""
        answer: Json = {"header": self.header(), "ID": str(lease)}
        found = self.leases.get(lease)
        if found is None:
            return {**answer, "TTL": "-1"}
        left = int(found.ends - self.now())
        return {**answer, "grantedTTL": str(found.ttl)} | ({"TTL": str(left)} if left else {})

    def revoke(self, lease: int) -> Json:
        """End a lease and delete its keys."""
        if self.leases.pop(lease, None) is None:
            raise Error(NO_LEASE, 404)
        writing = _Writing(self)
        writing.delete([key for key in sorted(self.pairs) if self.pairs[key].lease == lease])
        writing.end()
        return {"header": self.header()}

    def elect(self, until: float) -> None:
        """Be without a leader for a while; the new one counts all leases anew."""
        self.term += 1
        self.no_leader_until = max(self.no_leader_until, until)
        for lease in self.leases.values():
            lease.ends = max(lease.ends, self.now() + (until - self.scheduler.time) + lease.ttl)

    def _expire_later(self, lease: int) -> None:
        wait = max(0.0, self.leases[lease].ends - self.now()) * 1.01 + LATE * self.scheduler.random.random()
        self.scheduler.at(self.scheduler.time + wait, self.clock.machine, lambda: self._expire(lease))

    def _expire(self, lease: int) -> None:
        found = self.leases.get(lease)
        if found is None:
            return
        if found.ends > self.now() or self.scheduler.time < self.no_leader_until:
            self._expire_later(lease)
            return
        self.scheduler.note("etcd", f"ends a lease of {found.ttl} s")
        self.revoke(lease)


class _Writing:
    """What one transaction writes: all at the next revision, if there is anything."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._revision = cluster.revision + 1
        self._deleted = list[bytes]()
        self._wrote = False

    def put(self, key: bytes, value: bytes, lease: int) -> None:
        """Write a key."""
        pairs, self._wrote = self._cluster.pairs, True
        old = pairs.get(key)
        created, version = (self._revision, 1) if old is None else (old.created, old.version + 1)
        pairs[key] = Pair(key, value, created, self._revision, version, lease)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Delete keys."""
        for key in keys:
            del self._cluster.pairs[key]
        self._deleted += keys

    def end(self) -> None:
        """Let it be done."""
        cluster = self._cluster
        if self._wrote or self._deleted:
            cluster.revision = self._revision
            cluster.deletions += [(self._revision, key) for key in self._deleted]
            if self._deleted:
                cluster.tell(self._revision, self._deleted)


def _shown(pair: Pair) -> Json:
    fields: Iterator[tuple[str, Any]] = iter(
        (
            ("key", text_of(pair.key)),
            ("value", text_of(pair.value)),
            ("create_revision", str(pair.created)),
            ("mod_revision", str(pair.written)),
            ("version", str(pair.version)),
            ("lease", str(pair.lease) if pair.lease else ""),
        )
    )
    return {name: value for name, value in fields if value}


def within(key: bytes, begin: bytes, end: bytes) -> bool:
    """Say whether a key is in a range; an end of one zero byte is none."""
    return key >= begin and (end == b"\0" or key < end)


def known(body: Json, *fields: str) -> None:
    """Refuse what the model would pass over."""
    if strange := body.keys() - set(fields):
        raise NotImplementedError(f"the model of etcd does not know {sorted(strange)}")


def data_of(text: str) -> bytes:
    """Read bytes, as JSON has them."""
    return base64.b64decode(text)


def text_of(data: bytes) -> str:
    """Spell bytes as JSON has them."""
    return base64.b64encode(data).decode()

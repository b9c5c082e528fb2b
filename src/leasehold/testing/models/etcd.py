"""A model of etcd: keys with revisions, leases, transactions, watches, compaction; by the requests of its JSON gateway.

Theory of operation
-------------------
A cluster has one history, which Raft makes of what its members are asked; so there is one state, and each member is a
host that applies what arrives to it. What a member adds is that it can be away, or lose its connections. While there is
no leader a member refuses, or applies a request and cannot say so. A new leader counts all leases anew. An error or an
option that the model does not know is an error of the model's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold.runtimes.virtual import Scheduler
from leasehold.testing.models.net import Host, Line

Json = dict[str, Any]

LEAST_TTL = 2
"""Seconds: of etcd with its usual timers (one and a half times the election timeout, as whole seconds)."""

LATE = 0.5
"""Seconds that etcd may take to notice that a lease has run out (``lease.Lessor`` looks twice a second)."""

NO_LEADER = "etcdserver: no leader"
TIMED_OUT = "etcdserver: request timed out"
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


@dataclass(slots=True)
class Watcher:
    """A stream of deletions, from a revision on, which may be to come."""

    line: Line
    begin: bytes
    end: bytes
    start: int
    dead: bool = False


class Error(Exception):
    """An error that etcd answers with, and its HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(eq=False)
class Cluster:
    """The state on which all members agree."""

    clock: Host
    revision: int = 1
    compacted: int = 0
    pairs: dict[bytes, Pair] = field(default_factory=dict[bytes, Pair])
    leases: dict[int, Lease] = field(default_factory=dict[int, Lease])
    deletions: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    tell: Callable[[int, Sequence[bytes]], None] = lambda revision, keys: None
    no_leader_until: float = 0.0

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
        key = _bytes(where["key"])
        if "range_end" not in where:
            pair = self.pairs.get(key)
            return [] if pair is None else [pair]
        end = _bytes(where["range_end"])
        return [self.pairs[one] for one in sorted(self.pairs) if _within(one, key, end)]

    def range(self, body: Json) -> Json:
        """Read keys."""
        _known(body, "key", "range_end", "sort_order", "sort_target", "limit", "keys_only", "max_create_revision")
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
        _known(body, "compare", "success", "failure")
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
                _known(body, "key", "value", "lease")
                writing.put(_bytes(body["key"]), _bytes(body["value"]), int(body.get("lease", 0)))
                return {"response_put": {}}
            case "request_delete_range":
                keys = [pair.key for pair in self.find(body)]
                writing.delete(keys)
                return {"response_delete_range": {"deleted": str(len(keys))} if keys else {}}
        raise NotImplementedError(f"the model of etcd has no {kind}")

    def header(self) -> Json:
        """Return what each answer begins with."""
        return {"revision": str(self.revision)}

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


class Member(Host):
    """One member, over its gateway: a request is a path and a body, an answer an HTTP status and a body."""

    def __init__(self, scheduler: Scheduler, cluster: Cluster, name: str) -> None:
        super().__init__(scheduler, name=name)
        self.cluster = cluster
        self.watchers: dict[int, Watcher] = {}

    def receive(self, line: Line, request: tuple[str, bytes]) -> None:
        """Carry out a request."""
        self.counts.commands += 1
        path, body = request
        try:
            answer = self._answer(line, path, json.loads(body) if body else {})
        except Error as error:
            self._tell(line, path, error.status, {"error": str(error), "message": str(error)})
            return
        if answer is not None:
            self._tell(line, path, 200, answer)

    def over(self, line: Line) -> None:
        """Take note that a line has ended, and with it its watch."""
        super().over(line)
        self.watchers.pop(line.number, None)

    def told(self, revision: int, keys: Sequence[bytes]) -> None:
        """Tell the watchers here of deletions."""
        for watcher in list(self.watchers.values()):
            mine = [key for key in keys if _within(key, watcher.begin, watcher.end)]
            if mine and revision >= watcher.start:
                self._stream(watcher, {"events": [_deletion(revision, key) for key in mine]})

    def _answer(self, line: Line, path: str, body: Json) -> Json | None:
        cluster = self.cluster
        if path == "/version":
            return {"etcdserver": "3.5.4", "etcdcluster": "3.5.0"}
        if self.scheduler.time < cluster.no_leader_until:
            if self.scheduler.random.random() < 0.5 or path == "/v3/watch":
                raise Error(NO_LEADER, 503)
            self._carry_out(path, body)
            raise Error(TIMED_OUT, 503)
        if path == "/v3/watch":
            self._watch(line, body["create_request"])
            return None
        return self._carry_out(path, body)

    def _carry_out(self, path: str, body: Json) -> Json:
        cluster = self.cluster
        match path:
            case "/v3/kv/txn":
                return cluster.transact(body)
            case "/v3/kv/range":
                return {"header": cluster.header(), **cluster.range(body)}
            case "/v3/lease/grant":
                return cluster.grant(int(body.get("ID", 0)), int(body["TTL"]))
            case "/v3/lease/keepalive":
                return cluster.keep_alive(int(body["ID"]))
            case "/v3/lease/timetolive":
                return cluster.time_to_live(int(body["ID"]))
            case "/v3/lease/revoke":
                return cluster.revoke(int(body["ID"]))
        raise NotImplementedError(f"the model of etcd does not know {path}")

    def _watch(self, line: Line, body: Json) -> None:
        _known(body, "key", "range_end", "start_revision", "filters", "progress_notify", "fragment")
        assert body["filters"] == ["NOPUT"]
        if not line.open:
            return
        start, cluster = int(body["start_revision"]), self.cluster
        watcher = Watcher(line, _bytes(body["key"]), _bytes(body["range_end"]), start)
        self._stream(watcher, {"created": True})
        if start < cluster.compacted:
            self._stream(watcher, {"canceled": True, "compact_revision": str(cluster.compacted)})
            return
        self.watchers[line.number] = watcher
        for revision, key in cluster.deletions:
            if revision >= start and _within(key, watcher.begin, watcher.end):
                self._stream(watcher, {"events": [_deletion(revision, key)]})

    def _stream(self, watcher: Watcher, result: Json) -> None:
        line = watcher.line
        self.counts.messages += 1
        if line.link.deaf and not watcher.dead:
            watcher.dead = self.scheduler.random.random() < line.link.deaf  # a stream that lost one is dead for good
        if watcher.dead:
            self.counts.lost_messages += 1
        elif line.open:
            line.tell(json.dumps({"result": {"header": self.cluster.header(), **result}}).encode() + b"\n", True)

    def _tell(self, line: Line, path: str, status: int, answer: Json) -> None:
        self.note(f"answers {line.client.name} {path} {answer.get('error', '')} {self.cluster.revision}")
        if line.open:
            line.tell((status, json.dumps(answer).encode()))


def cluster_of(scheduler: Scheduler, names: Sequence[str], *, rate: float = 1.0) -> list[Member]:
    """Make a cluster, and return its members."""
    clock = Host(scheduler, rate=rate, name="etcd")
    cluster = Cluster(clock)
    members = [Member(scheduler, cluster, name) for name in names]

    def tell(revision: int, keys: Sequence[bytes]) -> None:
        for member in members:
            member.told(revision, keys)

    cluster.tell = tell
    return members


def _deletion(revision: int, key: bytes) -> Json:
    return {"type": "DELETE", "kv": {"key": _text(key), "mod_revision": str(revision)}}


def _shown(pair: Pair) -> Json:
    fields: Iterator[tuple[str, Any]] = iter(
        (
            ("key", _text(pair.key)),
            ("value", _text(pair.value)),
            ("create_revision", str(pair.created)),
            ("mod_revision", str(pair.written)),
            ("version", str(pair.version)),
            ("lease", str(pair.lease) if pair.lease else ""),
        )
    )
    return {name: value for name, value in fields if value}


def _within(key: bytes, begin: bytes, end: bytes) -> bool:
    return key >= begin and (end == b"\0" or key < end)


def _known(body: Json, *fields: str) -> None:
    if strange := body.keys() - set(fields):
        raise NotImplementedError(f"the model of etcd does not know {sorted(strange)}")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()

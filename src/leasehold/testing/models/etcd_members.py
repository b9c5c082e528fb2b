"""The members of a model of etcd: hosts over their JSON gateway, each with the watches of its connections.

What a member adds to the one state of the cluster (``etcd.py``) is that it can be away, or lose its connections. While
there is no leader it refuses, or applies a request and cannot say so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.runtimes.virtual import Scheduler
from leasehold.testing.models.etcd import Cluster, Error, Json, data_of, known, text_of, within
from leasehold.testing.models.net import Host, Line, ServerClock

NO_LEADER = "etcdserver: no leader"
TIMED_OUT = "etcdserver: request timed out"


@dataclass(slots=True)
class Watcher:
    """A stream of deletions, from a revision on, which may be to come."""

    line: Line
    begin: bytes
    end: bytes
    start: int
    dead: bool = False


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
            mine = [key for key in keys if within(key, watcher.begin, watcher.end)]
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
        known(body, "key", "range_end", "start_revision", "filters", "progress_notify", "fragment")
        assert body["filters"] == ["NOPUT"]
        if not line.open:
            return
        start, cluster = int(body["start_revision"]), self.cluster
        watcher = Watcher(line, data_of(body["key"]), data_of(body["range_end"]), start)
        self._stream(watcher, {"created": True})
        if start < cluster.compacted:
            self._stream(watcher, {"canceled": True, "compact_revision": str(cluster.compacted)})
            return
        self.watchers[line.number] = watcher
        for revision, key in cluster.deletions:
            if revision >= start and within(key, watcher.begin, watcher.end):
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
    clock = ServerClock(scheduler, rate=rate, name="etcd")
    cluster = Cluster(clock)
    members = [Member(scheduler, cluster, name) for name in names]

    def tell(revision: int, keys: Sequence[bytes]) -> None:
        for member in members:
            member.told(revision, keys)

    cluster.tell = tell
    return members


def _deletion(revision: int, key: bytes) -> Json:
    return {"type": "DELETE", "kv": {"key": text_of(key), "mod_revision": str(revision)}}

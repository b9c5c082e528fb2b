"""The members of a model of etcd: hosts over their JSON gateway, each with the watches of its connections.

What a member adds to the one state of the cluster (``etcd.py``) is that it can be away, or lose its connections. While
there is no leader it refuses, or applies a request and cannot say so. A leader that was stopped and replaced goes on,
and does not know it for a while (``etcd_leaders.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from leasehold_lab.runtimes.virtual import Scheduler
from models.etcd.leaders import Replaced
from models.etcd.state import Cluster, Error, Json, data_of, known, text_of, within
from models.net import Connection, Host, ServerClock

NO_LEADER = "etcdserver: no leader"
TIMED_OUT = "etcdserver: request timed out"


@dataclass(slots=True)
class Watcher:
    """A stream of deletions, from a revision on, which may be to come."""

    line: Connection
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
        self.replaced: Replaced | None = None
        self._unheard = list[tuple[int, Sequence[bytes]]]()  # deletions of which a replaced leader does not know
        self._unanswered = list[tuple[Connection, tuple[str, bytes]]]()  # requests that wait until it hears of them

    def receive(self, line: Connection, request: tuple[str, bytes]) -> None:
        """Carry out a request."""
        self.counts.commands += 1
        path, body = request
        try:
            asked: Json = json.loads(body) if body else {}
            if self.replaced is None or path == "/version":
                answer = self._answer(line, path, asked)
            elif (answer := self.replaced.answer(path, asked)) is None:
                self._unanswered.append((line, request))
        except Error as error:
            self._tell(line, path, error.status, {"error": str(error), "message": str(error)})
            return
        if answer is not None:
            self._tell(line, path, 200, answer)

    def over(self, line: Connection) -> None:
        """Take note that a line has ended, and with it its watch."""
        super().over(line)
        self.watchers.pop(line.number, None)

    def restart(self, seconds: float) -> None:
        """Be away, and hear of a new leader."""
        super().restart(seconds)
        self.hear()

    def is_replaced(self, stopped: float, unaware: float) -> None:
        """Lead, be stopped, and go on without knowing for a while that another leads."""
        self.note(f"leads, is stopped for {stopped:.6f} s, and replaced; hears of it {unaware:.6f} s after that")
        self.replaced = Replaced.of(self.cluster)
        self.stop(stopped)
        self.scheduler.at(self.scheduler.time + stopped + unaware, self.machine, self.hear)

    def stop(self, seconds: float) -> None:
        """Stand still: what arrives meanwhile is read after that."""
        self.machine.stopped_until = max(self.machine.stopped_until, self.scheduler.time + seconds)

    def hear(self) -> None:
        """Hear of a new leader, if there is one: what waited for that is done."""
        self.replaced = None
        unheard, self._unheard = self._unheard, []
        for revision, keys in unheard:
            self.told(revision, keys)
        unanswered, self._unanswered = self._unanswered, []
        for line, request in unanswered:
            self.take(line, request)

    def told(self, revision: int, keys: Sequence[bytes]) -> None:
        """Tell the watchers here of deletions."""
        if self.replaced is not None:
            self._unheard.append((revision, keys))
            return
        for watcher in list(self.watchers.values()):
            mine = [key for key in keys if within(key, watcher.begin, watcher.end)]
            if mine and revision >= watcher.start:
                self._stream(watcher, {"events": [_deletion(revision, key) for key in mine]})

    def _answer(self, line: Connection, path: str, body: Json) -> Json | None:
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

    def _watch(self, line: Connection, body: Json) -> None:
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

    def _tell(self, line: Connection, path: str, status: int, answer: Json) -> None:
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

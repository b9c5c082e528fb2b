"""Requests and watches that go to a real etcd and to its model, and a comparison of what both say.

What the servers choose by themselves is told apart by nothing else: a lease without an id of ours has the one that the
real server gave it, the model begins with the real revision, and what is left of a lease may differ by a second.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model_sequences import Ear

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.etcd import keys
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request, Stream, Unanswered
from leasehold.stores.etcd.http.blocking import BlockingHttp
from leasehold.stores.etcd.keys import Json
from leasehold_lab.runtimes.virtual import Scheduler
from leasehold_lab.servers import EtcdServer
from models.etcd.members import cluster_of

WITHIN = 10.0
LATEST = 1.0
"""Seconds after which a deletion that has not been told will not be."""


class Both:
    """The way to both; see `leasehold.stores.etcd.http.base.Http`.

    Attributes:
        fate: of the next request: its answer is lost, or it arrives late; None for neither.
        before: called before each request of a claim.
        late: requests that have not arrived.
        difference: what was not alike.

    """

    def __init__(self, runtime: BlockingRuntime, server: EtcdServer, seed: int) -> None:
        self.place = Endpoint("127.0.0.1", server.port)
        self._runtime = runtime
        self.real = BlockingHttp(runtime)
        self.scheduler = Scheduler(seed)
        (self.member,) = cluster_of(self.scheduler, ("e0",))
        self.model = self.member.cluster
        self.fate: str | None = None
        self.before: Callable[[], None] = lambda: None
        self.late: list[Request] = []
        self.difference: AssertionError | None = None
        self.log: list[str] = []
        self.seen = Counter[str]()
        self._ids: dict[str, str] = {}  # of leases whose id the server chose: the model's, by the real one
        self._one_by_one = threading.RLock()
        self._began = time.monotonic()
        status, said = self.really(Request("POST", "/v3/kv/range", (), json.dumps(keys.only("nothing")).encode()))
        assert status == 200
        self.first = self.model.revision = int(said["header"]["revision"])

    async def ask(self, place: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        if request.method == "GET":  # what version it has
            return await self.real.ask(place, request, until)
        self.before()
        fate, self.fate = self.fate, None
        if fate == "late":
            self.late.append(request)
            raise Unanswered("it has not arrived")
        reply = self.both(request)
        if fate == "lost":
            raise Unanswered("its answer is lost")
        return reply

    async def stream(self, place: Endpoint, request: Request, until: float) -> tuple[int, Stream]:
        raise NotImplementedError("what is heard is compared by `Heard`")

    async def close(self) -> None:
        """Leave the connections to those who go on."""

    def after_fork(self) -> None:
        raise NotImplementedError

    def send(self, path: str, body: Json) -> Json:
        """Send a request that is not a store's, and return the answer."""
        answer: Json = json.loads(self.both(Request("POST", path, (), json.dumps(body).encode())).body)
        return answer

    def both(self, request: Request) -> Reply:
        """Send a request to both, and compare the answers."""
        with self._one_by_one:
            self.scheduler.time = time.monotonic() - self._began
            status, said = self.really(request)
            ear = Ear(0)
            body = _renamed(json.loads(request.body), self._ids)
            self.member.receive(ear, (request.target, json.dumps(body).encode()))  # type: ignore[arg-type]
            ((code, text),) = ear.replies
            modelled = json.loads(text)
            if request.target == "/v3/lease/grant" and status == code == 200:
                self._ids[said["ID"]] = modelled["ID"]
            modelled = _renamed(modelled, {ours: theirs for theirs, ours in self._ids.items()})
            self.log.append(f"{request.target} {_read(json.loads(request.body))}\n    {status} {_read(said)}")
            self.seen[request.target] += 1
            self.seen[said.get("error", "") or f"succeeded {said.get('succeeded')}"] += 1
            if (status, _plain(said)) != (code, _plain(modelled)) and not _nearly(said, modelled):
                self.differ(f"the model says {code} {_read(modelled)}")
            return Reply(status, json.dumps(said).encode())

    def differ(self, what: str) -> None:
        """Report a difference; a caller that catches the error does not hide it."""
        self.difference = AssertionError("\n".join([*self.log, what]))
        raise self.difference

    def until(self) -> float:
        """Return when a request to the server has to be answered."""
        return self._runtime.now() + WITHIN

    def really(self, request: Request) -> tuple[int, Json]:
        reply = finish(self.real.ask(self.place, request, self.until()))
        return reply.status, json.loads(reply.body)


def _renamed(value: Any, ids: dict[str, str], field: str = "") -> Any:
    """Return an answer or a request with other ids of leases in it."""
    if isinstance(value, dict):
        return {name: _renamed(some, ids, name) for name, some in value.items()}
    if isinstance(value, list):
        return [_renamed(some, ids) for some in value]
    return ids.get(value, value) if field in ("ID", "lease") else value


def _plain(answer: Json) -> tuple[str, Any]:
    """Return the revision at an answer, and the rest of it without its headers."""
    header: Json = answer.get("result", answer).get("header", {})
    return header.get("revision", ""), _without_headers(answer)


def _without_headers(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_headers(some) for some in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_headers(some) for name, some in value.items() if name not in ("header", "code")}


def _read(body: Any) -> Any:
    """Return a body with the bytes of its keys and values as words."""
    if isinstance(body, list):
        return [_read(some) for some in body]
    if isinstance(body, dict):
        return {
            name: base64.b64decode(some).decode("utf-8", "replace")
            if name in ("key", "range_end", "value")
            else _read(some)
            for name, some in body.items()
            if name not in ("cluster_id", "member_id", "raft_term")
        }
    return body


def _nearly(said: Json, modelled: Json) -> bool:
    """Say whether both say what is left of a lease, to within a second."""
    if "grantedTTL" not in said or "grantedTTL" not in modelled:
        return False
    left, ours = int(said.get("TTL", 0)), int(modelled.get("TTL", 0))
    return abs(left - ours) <= 1 and _plain({**said, "TTL": ""}) == _plain({**modelled, "TTL": ""})


@dataclass(eq=False)
class Heard:
    """A watch at both, by which deletions are heard."""

    both: Both
    start: int
    ear: Ear = field(default_factory=lambda: Ear(0))
    over: bool = False
    _rest: bytes = b""
    _real: list[Any] = field(default_factory=list[Any])

    def open(self, where: Json, number: int) -> None:
        """Begin it."""
        self.ear.number = number
        body = json.dumps(keys.deletions(where, self.start)).encode()
        request = Request("POST", "/v3/watch", (), body)
        status, self._stream = finish(self.both.real.stream(self.both.place, request, self.both.until()))
        assert status == 200
        self.both.member.receive(self.ear, (request.target, body))  # type: ignore[arg-type]
        self.both.log.append(f"watch {number} from {self.start}")

    def compare(self) -> None:
        """Compare what was heard by now: both tell the last deletion, or that the watch was cancelled."""
        modelled = [_event(line) for message in self.ear.messages for line in _lines(message)]
        modelled = [one for some in modelled for one in some]
        until = time.monotonic() + LATEST
        while len(self._real) < len(modelled) and time.monotonic() < until:
            *lines, self._rest = (self._rest + finish(self._stream.read(0.2))).split(b"\n")
            self._real += [one for line in lines for one in _event(json.loads(line))]
        if self._real != modelled:
            self.both.differ(f"watch {self.ear.number} heard {self._real}, of the model {modelled}")
        self.both.seen.update(one[0] for one in modelled)
        self.over = any(one[0] == "canceled" for one in modelled)

    def close(self) -> None:
        """End it."""
        self.both.member.watchers.pop(self.ear.number, None)
        self._stream.close()


def _lines(message: bytes) -> list[Json]:
    return [json.loads(line) for line in message.splitlines()]


def _event(message: Json) -> list[tuple[Any, ...]]:
    """Return what a message of a watch tells: that it began or was cancelled, or deletions."""
    result = message["result"]
    if result.get("created"):
        return [("created", result["header"]["revision"])]
    if result.get("canceled"):
        return [("canceled", result["compact_revision"])]
    return [(one["type"], base64.b64decode(one["kv"]["key"]), one["kv"]["mod_revision"]) for one in result["events"]]

"""The model of etcd beside a real server: the same requests, the same answers, and the same deletions heard.

The requests are those of the shipped store: several clients of it claim, leave, renew, look and write cells, over a
gateway that sends each of their requests to both. Answers are lost on their way, requests arrive late, and other
clients come between the requests of one claim. Beside them go transactions of all sorts that the store makes with
revisions of now and before, watches from old revisions, compactions, and leases that an operator ends.

What the servers choose by themselves is told apart by nothing else: a lease without an id of ours has the one that the
real server gave it, the model begins with the real revision, and what is left of a lease may differ by a second.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from model_sequences import Ear, Play, Steps, chance, compare_many, differs

from leasehold._model import Change, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.stores.etcd import keys
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request, Stream, Unanswered
from leasehold.stores.etcd.http.blocking import BlockingHttp
from leasehold.stores.etcd.keys import Json, Keys
from leasehold.stores.etcd.store import EtcdStore
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.runtimes.virtual import Scheduler
from leasehold_lab.servers import EtcdServer
from models.etcd import state
from models.etcd.members import Member, cluster_of
from models.etcd.state import LATE, LEAST_TTL, Cluster

BY_DAY, BY_NIGHT = 20, 5_000
LENGTH = 40
CLIENTS = 3
NAMES = ("a", "b")
LARGE = (2**53, 2**53 + 1, 2**64, 10**20)  # fences that a double, or 64 bits, cannot tell apart or hold
WITHIN = 10.0
LATEST = 1.0
"""Seconds after which a deletion that has not been told will not be."""

BETWEEN = 0.3
"""How often another client comes before a request of a claim."""

RULES = (
    LockMode(),
    LockMode(Kind.READ_WRITE, fair=True),
    LockMode(Kind.READ_WRITE, exclusive=False, fair=True),
    LockMode(Kind.READ_WRITE, exclusive=False),
    LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True, fair=True),
    LockMode(Kind.SEMAPHORE, permits=1, limit=2),
    LockMode(Kind.SEMAPHORE, permits=1, limit=2, fair=True),
)
OWNER = Owner("host", 1, "x")


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
        status, said = self._really(Request("POST", "/v3/kv/range", (), json.dumps(keys.only("nothing")).encode()))
        assert status == 200
        self.first = self.model.revision = int(said["header"]["revision"])

    async def ask(self, place: Endpoint, request: Request, *, within: float, urgent: bool = False) -> Reply:
        if request.method == "GET":  # what version it has
            return await self.real.ask(place, request, within=within)
        self.before()
        fate, self.fate = self.fate, None
        if fate == "late":
            self.late.append(request)
            raise Unanswered("it has not arrived")
        reply = self.both(request)
        if fate == "lost":
            raise Unanswered("its answer is lost")
        return reply

    async def stream(self, place: Endpoint, request: Request, *, within: float) -> tuple[int, Stream]:
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
            status, said = self._really(request)
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
        """Say that something is not alike; whoever catches it does not hide it."""
        self.difference = AssertionError("\n".join([*self.log, what]))
        raise self.difference

    def _really(self, request: Request) -> tuple[int, Json]:
        reply = finish(self.real.ask(self.place, request, within=WITHIN))
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
        status, self._stream = finish(self.both.real.stream(self.both.place, request, within=WITHIN))
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


class Playing:
    """One random sequence."""

    def __init__(self, server: EtcdServer, seed: int) -> None:
        self.seed = seed
        self.server = server
        self.both = Both(BlockingRuntime(), server, seed)
        settings = Settings("both", (self.both.place,))
        namespace = f"model-{seed}"
        self.keys = Keys.of(settings, namespace)
        self.clients = [EtcdStore(BlockingRuntime(), settings, namespace, self.both) for _ in range(CLIENTS)]
        self.tickets = list[tuple[EtcdStore, str, Ticket]]()
        self.watches = list[Heard]()
        self.opened = 0
        self.claiming: EtcdStore | None = None
        self.chance = chance(seed, -1)

    def play(self, steps: Steps) -> Counter[str]:
        """Play some of its steps."""
        try:
            for number in steps:
                self.chance = chance(self.seed, number)
                self.both.log.append(f"-- {number}")
                self.step()
            self.hears()
        finally:
            self.close()
        return self.both.seen

    def step(self) -> None:
        """Do something."""
        try:
            self.chance.choice(STEPS)(self)
        except (StoreUnavailable, NameInUse) as error:
            self.both.seen[type(error).__name__] += 1
        if self.both.difference is not None:
            raise self.both.difference

    def between(self) -> None:
        """Let another client come before a request of a claim, sometimes."""
        self.both.before = lambda: None
        try:
            if self.chance.random() < BETWEEN:
                self.chance.choice((Playing.leaves, Playing.claims, Playing.asks))(self)
        except (StoreUnavailable, NameInUse):
            pass
        finally:
            self.both.before = self.between

    # --- what clients do ---------------------------------------------------------------------------------------

    def ready(self) -> list[EtcdStore]:
        """Return the clients that are not in the midst of a claim."""
        return [client for client in self.clients if client is not self.claiming]

    def known(self) -> list[tuple[EtcdStore, str, Ticket]]:
        """Return the tickets of those clients, and what they claim."""
        return [one for one in self.tickets if one[0] is not self.claiming]

    def claims(self) -> None:
        """Claim with a new ticket, or with one that waits or holds."""
        known = self.known()
        if known and self.chance.random() < 0.5:
            client, name, ticket = self.chance.choice(known)
        else:
            client, name = self.chance.choice(self.ready()), self.chance.choice(NAMES)
            alongside = self.chance.choice(["", "", *(one.id for _, _, one in self.tickets)])
            terms = LeaseTerms(
                self.mode(name), OWNER, self.chance.choice((60.0, 90.0)), fixed=self.chance.random() < 0.2
            )
            ticket = Ticket(f"t{len(self.tickets)}", terms, alongside if terms.mode.kind is Kind.READ_WRITE else "")
            self.tickets.append((client, name, ticket))
        join = self.chance.random() < 0.7
        if self.claiming is not None:
            finish(client.try_acquire(name, ticket, join=join, within=WITHIN))
            return
        self.claiming, self.both.before = client, self.between
        self.both.fate = self.chance.choice((None, None, None, None, "lost", "late"))
        try:
            finish(client.try_acquire(name, ticket, join=join, within=WITHIN))
        finally:
            self.claiming, self.both.before, self.both.fate = None, lambda: None, None

    def mode(self, name: str) -> LockMode:
        """Return what a name is used as, as a rule."""
        return self.chance.choice(RULES if name == "a" else RULES[:1])

    def leaves(self) -> None:
        """Leave, or break a ticket of another client."""
        if known := self.known():
            client, name, ticket = self.chance.choice(known)
            if self.chance.random() < 0.2:
                client = self.chance.choice(self.ready())
            finish(client.release(name, ticket, reason=ReleaseReason.RELEASE, within=WITHIN))

    def renews(self) -> None:
        """Renew some tickets of a client."""
        client = self.chance.choice(self.clients)
        mine = [(name, ticket) for store, name, ticket in self.tickets if store is client]
        some = self.chance.sample(mine, min(len(mine), 3))
        finish(client.renew(some, within=WITHIN))

    def looks(self) -> None:
        """Show who is there."""
        finish(self.clients[0].inspect(self.chance.choice(("", "a")), exact=self.chance.random() < 0.3))

    def changes_a_cell(self) -> None:
        """Write a cell, or look at it."""
        value = self.chance.choice((None, b"v", b"\x00\xff"))
        version, fence = self.chance.choice((None, None, 0, 1, 2)), self.chance.choice((None, 7, 9, *LARGE))
        change = Change(value, version, fence, self.chance.choice((60.0, 90.0)))
        finish(self.chance.choice(self.clients).compare_and_set("cell", change))

    def arrives(self) -> None:
        """Let a request arrive that its client has given up."""
        if self.both.late:
            self.both.both(self.both.late.pop(0))
            self.both.seen["arrives late"] += 1

    # --- what others do ----------------------------------------------------------------------------------------

    def asks(self) -> None:
        """Make a transaction of the kinds that there are, with any revision and any lease."""
        name = self.chance.choice(NAMES)
        line = keys.span(self.keys.queue(name))
        others = [self.keys.queue(name) + "0-other", self.keys.marks(name) + "0-other", self.keys.tombstone("0-other")]
        there = [key.decode() for key in self.both.model.pairs if key.startswith(self.keys.queue(name).encode())]
        one, other = self.chance.sample([*others, *there], 2)
        only = keys.only(one)
        revision = self.some_revision()
        compares = [
            keys.absent(only),
            keys.absent(line),
            keys.created(only, revision),
            keys.written(only, revision),
            keys.version_is(only, self.chance.randrange(3)),
            keys.unwritten_since(line, revision),
            keys.unwritten_since(keys.span(self.keys.marks(name)), revision),
        ]
        lease = self.chance.choice([0, 4711, *(int(self.real_id(lease)) for lease in self.both.model.leases)])
        operations = [
            keys.ranged(line),
            keys.ranged(line, **keys.FIRST),
            keys.ranged(line, **keys.LAST),
            keys.ranged(only, keys_only=True),
            keys.put(one, b'{"a": 1}', lease),
            keys.deleted(keys.only(other)),
            keys.ranged(line),
        ]
        some = [sorted(self.chance.sample(range(7), self.chance.randrange(4))) for _ in range(2)]
        body = keys.txn(
            self.chance.sample(compares, self.chance.randrange(3)), *([operations[at] for at in part] for part in some)
        )
        self.both.send("/v3/kv/txn", body)
        self.both.send("/v3/kv/range", {**line, **keys.LAST, "max_create_revision": str(revision)})
        self.both.send("/v3/kv/range", {**line, "limit": "1", "keys_only": True})

    def some_revision(self) -> int:
        """Return a revision that may matter: of now, or of some key."""
        pairs = [some for pair in self.both.model.pairs.values() for some in (pair.created, pair.written)]
        return self.chance.choice([self.both.model.revision, *pairs]) + self.chance.choice((0, 0, 0, -1, 1))

    def real_id(self, lease: int) -> str:
        """Return what a lease of the model is called at the real server."""
        return next((real for real, ours in self.both._ids.items() if ours == str(lease)), str(lease))

    def ends_a_lease(self) -> None:
        """Revoke a lease as an operator does, or ask for one, renew one, show one that there is or is not."""
        lease = self.chance.choice(["4711", *map(self.real_id, self.both.model.leases)])
        path = self.chance.choice(("revoke", "revoke", "grant", "keepalive", "timetolive"))
        self.both.send(f"/v3/lease/{path}", {"ID": lease, **({"TTL": "60"} if path == "grant" else {})})

    def watches_from(self) -> None:
        """Open a watch from a revision of before, of now or to come."""
        start = max(self.both.first + 1, self.both.model.revision + self.chance.randint(-6, 3))
        self.opened += 1
        watch = Heard(self.both, self.chance.choice((start, max(self.both.model.compacted, self.both.first + 1))))
        self.watches.append(watch)
        watch.open(keys.span(self.keys.locks), self.opened)

    def hears(self) -> None:
        """Compare what all watches tell, up to a deletion that all hear."""
        last = f"{self.keys.locks}~/last"
        for _ in range(4):  # so that a watch from a revision to come hears it, too
            self.both.send("/v3/kv/txn", keys.txn([], [keys.put(last, b"", 0)]))
            self.both.send("/v3/kv/txn", keys.txn([], [keys.deleted(keys.only(last))]))
        for watch in self.watches:
            watch.compare()
            if watch.over or self.chance.random() < 0.3:
                watch.close()
                watch.over = True
        self.watches = [watch for watch in self.watches if not watch.over]

    def compacts(self) -> None:
        """Forget old revisions."""
        self.hears()  # what is on its way would be lost or not
        kept = keys.put(f"{self.keys.locks}~/kept", b"", 0)  # of a deletion there, etcd tells by its version
        self.both.send("/v3/kv/txn", keys.txn([], [kept]))
        self.both.model.compact()
        self.server.compact()
        self.both.log.append(f"compacted at {self.both.model.compacted}")

    def close(self) -> None:
        """Leave nothing behind."""
        for watch in self.watches:
            watch.close()
        for lease in [*map(self.real_id, self.both.model.leases)]:
            self.both._really(Request("POST", "/v3/lease/revoke", (), json.dumps({"ID": lease}).encode()))
        for stem in (self.keys.locks, self.keys.cells, self.keys.tombstones, self.keys.marks_prefix):
            self.both._really(Request("POST", "/v3/kv/deleterange", (), json.dumps(keys.span(stem)).encode()))
        finish(self.both.real.close())


STEPS: list[Callable[[Playing], None]] = [Playing.claims] * 8 + [Playing.leaves] * 4 + [Playing.asks] * 4
STEPS += [Playing.renews, Playing.changes_a_cell] * 2 + [Playing.ends_a_lease, Playing.watches_from, Playing.hears] * 2
STEPS += [Playing.looks, Playing.arrives, Playing.arrives, Playing.compacts]


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[EtcdServer]:
    """A server with etcd's usual timers, to which nobody else writes."""
    with EtcdServer(heartbeat=100) as server:
        outlive.add(server.pid)
        yield server


def play(server: EtcdServer) -> Play:
    """Return what plays sequences on a server and on a model."""
    return lambda seed, steps: Playing(server, seed).play(steps)


THERE = (
    *("/v3/kv/txn", "/v3/kv/range", "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"),
    *("/v3/lease/timetolive", "etcdserver: requested lease not found", "etcdserver: lease already exists"),
    *("succeeded True", "succeeded None", "arrives late", "NameInUse", "StoreUnavailable"),
    *("created", "DELETE", "canceled"),
)
"""What a day's sequences have in them."""


@pytest.mark.timeout(300)
def test_the_model_answers_as_the_server_does(server: EtcdServer, record_property: Any) -> None:
    seen = compare_many(play(server), BY_DAY, LENGTH)
    record_property("sum:simulation: requests to etcd and its model", sum(seen[path] for path in seen if "/v3" in path))
    assert {what for what in THERE if not seen[what]} <= {"canceled"}  # of which there are few


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_model_answers_as_the_server_does_in_thousands_of_sequences(server: EtcdServer) -> None:
    seen = compare_many(play(server), BY_NIGHT, LENGTH)
    assert all(seen[what] for what in THERE)


def forgets_nothing(cluster: Cluster) -> None:
    """Forget no deletion, and cancel no watch, at a compaction."""


def renews_the_dead(cluster: Cluster, lease: int) -> Json:
    """Renew leases that are not there."""
    return {"result": {"header": cluster.header(), "ID": str(lease), "TTL": "60"}}


def lives_on(cluster: Cluster, lease: int) -> Json:
    """Let the keys of a lease stay when it ends."""
    if cluster.leases.pop(lease, None) is None:
        raise state.Error(state.NO_LEASE, 404)
    return {"header": cluster.header()}


def of_any_age(cluster: Cluster, body: Json) -> Json:
    """Read keys, however late they were created."""
    return RANGE(cluster, {name: body[name] for name in body if name != "max_create_revision"})


def tells_too_early(member: Member, revision: int, deleted: Sequence[bytes]) -> None:
    """Say that deletions have the revision before."""
    TOLD(member, revision - 1, deleted)


RANGE, TOLD = Cluster.range, Member.told
MISTAKES = [
    (Cluster, "compact", forgets_nothing),
    (Cluster, "keep_alive", renews_the_dead),
    (Cluster, "revoke", lives_on),
    (Cluster, "range", of_any_age),
    (Member, "told", tells_too_early),
]


@pytest.mark.parametrize(("where", "what", "mistake"), MISTAKES, ids=[mistake[1] for mistake in MISTAKES])
def test_a_model_that_is_wrong_differs(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch, where: type, what: str, mistake: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, what, mistake)
    assert differs(play(server), BY_DAY, LENGTH)


def test_leases_end_when_the_model_says(server: EtcdServer) -> None:
    """Each ends after its length, and by `LATE` later; the least is `LEAST_TTL`, and a renewed one begins anew."""
    lengths, renewed = {1: 1, 2: 2, 3: 3, 4: 1}, 4
    real, modelled = really_ended(server, lengths, renewed), ended_in_the_model(lengths, renewed)
    for lease, asked in lengths.items():
        least = max(asked, LEAST_TTL) + (RENEWED if lease == renewed else 0.0)
        assert least <= modelled[lease] <= 1.01 * least + LATE
        assert least - 0.1 <= real[lease] <= 1.01 * least + LATE + BUSY


RENEWED = 0.5
"""Seconds after which one of the leases is renewed."""

BUSY = 1.0
"""Seconds by which a busy machine may hold the server up."""


def requests(lengths: Mapping[int, int]) -> Iterator[tuple[str, Json]]:
    """Yield what makes leases of these lengths, with a key under each."""
    for lease, length in lengths.items():
        yield "/v3/lease/grant", {"ID": str(lease), "TTL": str(length)}
        yield "/v3/kv/txn", keys.txn([], [keys.put(f"ends/{lease}", b"", lease)])


def really_ended(server: EtcdServer, lengths: Mapping[int, int], renewed: int) -> dict[int, float]:
    """Return how many seconds after their grants leases of the server had ended."""
    began = time.monotonic()
    for path, body in requests(lengths):
        server.ask(path, body)
    time.sleep(began + RENEWED - time.monotonic())
    server.ask("/v3/lease/keepalive", {"ID": str(renewed)})
    found = dict[int, float]()
    while len(found) < len(lengths):
        time.sleep(0.02)
        left = {int(key.rpartition("/")[2]) for key in server.keys("ends/")}
        found.update(dict.fromkeys(lengths.keys() - left - found.keys(), time.monotonic() - began))
    return found


def ended_in_the_model(lengths: Mapping[int, int], renewed: int) -> dict[int, float]:
    """Return the same of the model."""
    harness, found = SimulatedHarness(1), dict[int, float]()

    async def body(_: Harness) -> None:
        (member,) = cluster_of(harness.scheduler, ("e0",))
        for path, body in requests(lengths):
            member.receive(Ear(0), (path, json.dumps(body).encode()))  # type: ignore[arg-type]
        await harness.sleep(RENEWED)
        member.cluster.keep_alive(renewed)
        while len(found) < len(lengths):
            await harness.sleep(0.02)
            found.update(
                dict.fromkeys(lengths.keys() - member.cluster.leases.keys() - found.keys(), harness.scheduler.time)
            )

    harness.run(body)
    return found

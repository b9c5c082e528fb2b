"""The model of ZooKeeper beside a real server: the same requests, the same answers, and the same watches that ring.

Clients of the shipped store live in a simulated runtime; each of their requests goes to the model and, by a session of
kazoo, to the real server. Other clients come between the requests of one claim, answers are lost, sessions end by
themselves or are ended. Beside that go requests of all sorts on the same nodes, with versions of now and of before.

There is one member, which never lags: what a member answers that does is another each time. Numbers of writes and of
sessions are other ones at both; what has the same at one must have the same at the other, and in the same order.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from model_sequences import Play, Steps, chance, compare_many, differs

from leasehold._model import Change, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import LeaseholdError, NameInUse, StoreUnavailable
from leasehold.stores.zookeeper.connection.errors import Answer
from leasehold.stores.zookeeper.connection.requests import (
    CONTAINER,
    EPHEMERAL,
    SEQUENCE,
    Node,
    Request,
    Requests,
)
from leasehold.stores.zookeeper.connection.session import LinkEvent, Session, Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Mark, Paths, stem
from leasehold.stores.zookeeper.store import ZooKeeperStore
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Machine
from leasehold_lab.servers import ZooKeeperServer
from models.zookeeper import tree
from models.zookeeper.ensemble import TICK, Ensemble, Member
from models.zookeeper.transport import ModelTransport
from models.zookeeper.tree import Tree, Write

BY_DAY, BY_NIGHT = 20, 3_000
LENGTH = 30
CLIENTS = 3
NAMES = ("a", "b")
WITHIN = 10.0
TIMEOUT = 30.0
"""Seconds of a session: none ends by itself."""

SETTLED = 0.1
"""Virtual seconds in which all has arrived."""

BETWEEN = 0.3
"""How often another client comes before a request of a claim."""

RULES = (
    LockMode(),
    LockMode(Kind.READ_WRITE),
    LockMode(Kind.READ_WRITE, exclusive=False),
    LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True),
    LockMode(Kind.SEMAPHORE, permits=1, limit=2),
    LockMode(Kind.SEMAPHORE, permits=2, limit=3),
)
OWNER = Owner("host", 1, "x")


class Alike:
    """Compares what both say. Numbers of writes and of sessions are taken for the same as they come."""

    def __init__(self) -> None:
        self._writes: dict[int, int] = {}
        self._sessions: dict[int, int] = {0: 0}

    def both(self, real: Any, modelled: Any) -> bool:
        """Say whether two answers are alike."""
        if isinstance(real, Exception) or isinstance(modelled, Exception):
            return type(real) is type(modelled)
        if isinstance(real, Node) and isinstance(modelled, Node):
            return self._node(real, modelled)
        if hasattr(real, "czxid"):
            return hasattr(modelled, "czxid") and self._stat(real, modelled)
        if isinstance(real, list | tuple) and isinstance(modelled, list | tuple):
            return len(real) == len(modelled) and all(map(self.both, real, modelled))
        return bool(real == modelled and type(real) is type(modelled))

    def _node(self, real: Node, modelled: Node) -> bool:
        plain = [(one.path, one.data, one.version) for one in (real, modelled)]
        return plain[0] == plain[1] and self._written(real, modelled) and self.session(real.owner, modelled.owner)

    def _stat(self, real: Any, modelled: Any) -> bool:
        plain = [(one.version, one.numChildren) for one in (real, modelled)]
        owners = self.session(real.ephemeralOwner, modelled.ephemeralOwner)
        return plain[0] == plain[1] and self._written(real, modelled) and owners

    def _written(self, real: Any, modelled: Any) -> bool:
        return self._same(self._writes, real.czxid, modelled.czxid) and self._same(
            self._writes, real.mzxid, modelled.mzxid
        )

    def session(self, real: int, modelled: int) -> bool:
        """Say whether two sessions may be the same one."""
        return self._same(self._sessions, real, modelled)

    def in_order(self) -> bool:
        """Say whether of the writes that were seen, the same came first at both."""
        modelled = [self._writes[real] for real in sorted(self._writes)]
        return all(one < other for one, other in pairwise(modelled))

    @staticmethod
    def _same(known: dict[int, int], real: int, modelled: int) -> bool:
        return known.setdefault(real, modelled) == modelled and list(known.values()).count(modelled) == 1


class BothTransports(Requests):
    """One session at each; see `leasehold.stores.zookeeper.connection.session`. What the store hears is of the model.

    Attributes:
        before: called before requests.
        lost: whether the next answer is lost.

    """

    def __init__(self, playing: Playing, runtime: SimulatedRuntime, hear: Callable[[LinkEvent], None]) -> None:
        settings = Settings((("127.0.0.1", playing.server.port),), session_timeout=TIMEOUT)
        super().__init__(settings)
        self._playing = playing
        self._clock = BlockingRuntime()
        self.real = Transport(self._clock, settings, lambda link: None)
        self.model = ModelTransport(runtime, settings, playing.ensemble.members, hear)
        self.rung: tuple[list[str], list[str]] = ([], [])
        self.lost = False
        self.before: Callable[[], Awaitable[None]] | None = None

    @property
    def session(self) -> Session | None:
        return self.model.session

    @property
    def up(self) -> bool:
        return self.model.up

    async def ready(self, until: float) -> Session:
        session = await self.model.ready(until)
        real = finish(self.real.ready(self._clock.now() + WITHIN))
        if not self._playing.alike.session(real.id, session.id) or real.timeout != session.timeout:
            self._playing.differ(f"sessions {real} and {session}")
        return session

    async def ask_all(self, requests: Sequence[Request], until: float) -> list[Any]:
        await self.ready(until)
        if self.before is not None:
            await self.before()
        if until <= self._playing.harness.now():
            raise StoreUnavailable("no time is left")
        lost, self.lost = self.lost, False
        async with self._playing.turn():  # who removes what has lapsed asks beside the others
            answers = await self._both(requests)
        if lost:
            raise StoreUnavailable("the answer is lost", unknown=True)
        return answers

    async def _both(self, requests: Sequence[Request]) -> list[Any]:
        """Ask both, with time enough, and compare; the answers of the model go on."""
        until = self._playing.harness.now() + WITHIN
        real: Any
        modelled: Any
        try:
            asked = [self._told(request, 0) for request in requests]
            real = finish(self.real.ask_all(asked, self._clock.now() + WITHIN))
        except LeaseholdError as error:
            real = error
        try:
            modelled = await self.model.ask_all([self._told(request, 1) for request in requests], until)
        except LeaseholdError as error:
            modelled = error
        self._playing.compare(requests, real, modelled)
        if isinstance(modelled, LeaseholdError):
            raise modelled
        answers: list[Any] = modelled
        return answers

    def _told(self, request: Request, side: int) -> Request:
        """Return a request whose watch is taken note of; the store hears the model's."""
        watcher = getattr(request.form, "watcher", None)
        if watcher is None:
            return request
        what = f"{type(request.form).__name__} {request.form.path}"

        def ring(event: Any) -> None:
            self.rung[side].append(f"{what} {'lost' if event.path is None else 'changed'}")
            if side:
                watcher(event)

        return Request(request.form._replace(watcher=ring), request.read)

    def heard(self) -> None:
        """Wait until all is heard that the real server has told by now."""
        finish(self.real.ask_all([self.sync("/")], self._clock.now() + WITHIN))
        done = threading.Event()
        self.real._kazoo.handler.callback_queue.put(done.set)
        assert done.wait(WITHIN)

    def expire(self) -> None:
        """Let both servers end the session."""
        session = finish(self.real.ready(self._clock.now() + WITHIN))
        self._playing.server.end_session(self.real._kazoo.client_id)
        until = self._clock.now() + WITHIN
        while self.real.session is None or self.real.session.id == session.id:
            assert self._clock.now() < until
            threading.Event().wait(0.005)
        assert self.session is not None
        self._playing.ensemble.end(self.session.id)
        self._playing.ensemble.members[0].hang_up(self.model._runtime.machine, arrives=True)

    async def command(self, word: str, until: float) -> str:
        return ""

    async def close(self) -> None:
        finish(self.real.close())
        await self.model.close()

    def after_fork(self) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class Party:
    """A client, and its transports."""

    store: ZooKeeperStore
    transports: BothTransports


@dataclass(eq=False)
class Playing:
    """One random sequence."""

    harness: SimulatedHarness
    server: ZooKeeperServer
    seed: int
    alike: Alike = field(default_factory=Alike)
    log: list[str] = field(default_factory=list[str])
    seen: Counter[str] = field(default_factory=Counter[str])
    tickets: list[tuple[int, str, Ticket]] = field(default_factory=list[tuple[int, str, Ticket]])
    difference: AssertionError | None = None
    claiming: int | None = None
    asking: bool = False

    def __post_init__(self) -> None:
        self.ensemble = Ensemble(self.harness.scheduler, ("z0",))
        self.namespace = f"model-{secrets.token_hex(4)}"
        self.paths = Paths("", self.namespace)
        self.chance = chance(self.seed, -1)
        self.made = 0
        self.parties = [self.party() for _ in range(CLIENTS)]

    def party(self) -> Party:
        """Make a client."""
        self.made += 1
        runtime, made = SimulatedRuntime(self.harness.scheduler, Machine(f"c{self.made}")), list[BothTransports]()

        def make(hear: Callable[[LinkEvent], None]) -> Transport:
            made.append(BothTransports(self, runtime, hear))
            return made[0]  # type: ignore[return-value]

        settings = Settings((("127.0.0.1", self.server.port),), session_timeout=TIMEOUT)
        return Party(ZooKeeperStore(runtime, self.namespace, settings, "", make), made[0])

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Keep others from asking, so that both servers are asked in the same order."""
        while self.asking:
            await self.harness.sleep(0.001)
        self.asking = True
        try:
            yield
        finally:
            self.asking = False

    # --- comparing ---------------------------------------------------------------------------------------------

    def compare(self, requests: Sequence[Request], real: Any, modelled: Any) -> None:
        """Compare what was answered to some requests."""
        for side in (real, modelled):
            if isinstance(side, list):
                side[:] = map(_sorted, side)
        self.log += [f"    {_shown(request.form)}" for request in requests]
        self.log.append(f"    -> {_brief(real)}")
        self.seen.update(type(request.form).__name__ for request in requests)
        some = modelled if isinstance(modelled, list) else [modelled]
        self.seen.update(type(one).__name__ for one in some if isinstance(one, Exception))
        if not self.alike.both(real, modelled):
            self.differ(f"the model says {_brief(modelled)}")

    def differ(self, what: str) -> None:
        """Say that something is not alike; whoever catches it does not hide it."""
        self.difference = AssertionError("\n".join([*self.log, what]))
        raise self.difference

    async def hears(self) -> None:
        """Compare whose watches rang."""
        await self.harness.sleep(SETTLED)
        for number, party in enumerate(self.parties):
            party.transports.heard()
            real, modelled = map(sorted, party.transports.rung)
            if real != modelled:
                self.differ(f"{number} heard {real}, of the model {modelled}")
            self.seen.update("rings" for _ in real)
            for rung in party.transports.rung:
                rung.clear()

    # --- steps -------------------------------------------------------------------------------------------------

    async def play(self, steps: Steps) -> None:
        """Play some of its steps."""
        try:
            for party in self.parties:
                await party.transports.ready(self.harness.now() + WITHIN)
            for number in steps:
                self.chance = chance(self.seed, number)
                self.log.append(f"-- {number}")
                await self.step()
                await self.hears()
            if not self.alike.in_order():
                self.differ("writes came in another order")
        finally:
            for party in self.parties:
                await party.store.close()

    async def step(self) -> None:
        """Do something."""
        do = self.chance.choice(STEPS)
        self.log[-1] += f" {do.__name__}"
        self.seen[do.__name__] += 1
        try:
            await do(self)
        except (StoreUnavailable, NameInUse) as error:
            self.seen[type(error).__name__] += 1
        if self.difference is not None:
            raise self.difference

    async def between(self) -> None:
        """Let another client come before a request of a claim, sometimes."""
        assert self.claiming is not None
        transports = self.parties[self.claiming].transports
        before, transports.before = transports.before, None
        try:
            if self.chance.random() < BETWEEN:
                self.log.append("  between:")
                await self.chance.choice((Playing.leaves, Playing.claims, Playing.asks))(self)
        except (StoreUnavailable, NameInUse):
            pass
        finally:
            transports.before = before

    def some_client(self) -> int:
        """Return a client that is not in the midst of a claim."""
        return self.chance.choice([number for number in range(CLIENTS) if number != self.claiming])

    def known(self) -> list[tuple[int, str, Ticket]]:
        """Return the tickets of those clients."""
        return [one for one in self.tickets if one[0] != self.claiming]

    async def claims(self) -> None:
        """Claim with a new ticket, or with one that waits or holds."""
        known = self.known()
        if known and self.chance.random() < 0.5:
            number, name, ticket = self.chance.choice(known)
        else:
            number, name = self.some_client(), self.chance.choice(NAMES)
            mode = self.chance.choice(RULES) if name == "a" else RULES[0]
            mine = [one.id for client, _, one in self.tickets if client == number]
            alongside = self.chance.choice(["", "", *mine]) if mode.kind is Kind.READ_WRITE else ""
            ticket = Ticket(ticket_id(self.chance.randbytes(16)), LeaseTerms(mode, OWNER, 60.0), alongside)
            self.tickets.append((number, name, ticket))
        party, join = self.parties[number], self.chance.random() < 0.7
        claim = party.store.try_acquire(name, ticket, join=join, within=WITHIN)
        if self.claiming is not None:
            await claim
            return
        self.claiming, party.transports.before = number, self.between
        party.transports.lost = self.chance.random() < 0.15
        try:
            await claim
        finally:
            self.claiming, party.transports.before, party.transports.lost = None, None, False

    async def leaves(self) -> None:
        """Leave, or break a ticket of another client."""
        if known := self.known():
            number, name, ticket = self.chance.choice(known)
            if self.chance.random() < 0.2:
                number = self.some_client()
            await self.parties[number].store.release(name, ticket, reason=ReleaseReason.RELEASE, within=WITHIN)

    async def renews(self) -> None:
        """Renew some tickets of a client."""
        number = self.some_client()
        mine = [(name, ticket) for client, name, ticket in self.tickets if client == number]
        await self.parties[number].store.renew(self.chance.sample(mine, min(len(mine), 3)), within=WITHIN)

    async def looks(self) -> None:
        """Show who is there."""
        await self.parties[0].store.inspect(self.chance.choice(("", "a")), exact=self.chance.random() < 0.3)

    async def changes_a_cell(self) -> None:
        """Write a cell, or look at it."""
        value = self.chance.choice((None, b"v", b"\x00\xff"))
        version, fence = self.chance.choice((None, None, 0, 1, 2)), self.chance.choice((None, 7, 9))
        await self.parties[self.some_client()].store.compare_and_set("cell", Change(value, version, fence, 60.0))

    async def asks(self) -> None:
        """Make requests of all kinds on nodes that are there or not, with any version."""
        transports = self.parties[self.some_client()].transports
        below = [path for path in self.ensemble.tree.nodes if path.startswith(f"{self.paths.space}/")]
        folder = self.chance.choice([self.paths.lock(name) for name in NAMES] + [f"{self.paths.lock('a')}/{LEASES}"])
        one, other = self.chance.choice([*below, folder]), self.chance.choice([f"{folder}/other", *below, folder])
        contender = f"{folder}/{stem(ticket_id(self.chance.randbytes(16)), self.chance.choice(list(Mark)))}"
        version = self.chance.choice((-1, -1, 0, 1, 2))
        flags = self.chance.choice((0, EPHEMERAL, SEQUENCE, EPHEMERAL | SEQUENCE))
        ring = self.rings
        some = [
            transports.get(one, ring),
            transports.get(other),
            transports.exists(other, ring),
            transports.exists(contender, ring),
            transports.children(one, ring),
            transports.listing(folder),
            transports.set(one, b"%d" % version, version),
            transports.delete(other, version),
            transports.create(other, b"", flags),
            transports.create(f"{one}/below", b"x", self.chance.choice((0, CONTAINER))),
            transports.create(folder, b"", CONTAINER),
            transports.create(f"{folder}/{LOCKS}", b"", CONTAINER),
            transports.create(contender, b"y", EPHEMERAL | SEQUENCE),
            transports.sync(one),
        ]
        parts = [
            transports.check(one),
            transports.check(other),
            transports.delete(one, version),
            transports.delete(other),
            transports.set(other, b"z", version),
            transports.set(one, b"z"),
            transports.create_in_transaction(one, b"again", 0),
            transports.create_in_transaction(contender, b"y", EPHEMERAL | SEQUENCE),
            transports.create_in_transaction(contender, b"y", EPHEMERAL | SEQUENCE),
            transports.create_in_transaction(f"{folder}/other", b"", 0),
        ]
        asked = self.chance.sample(some, 4)
        asked.insert(
            self.chance.randrange(5), transports.all_or_none(*self.chance.sample(parts, self.chance.randint(1, 3)))
        )
        for request in asked if self.chance.random() < 0.5 else []:
            await transports.ask_all([request], self.harness.now() + WITHIN)
        await transports.ask_all(asked, self.harness.now() + WITHIN)

    @staticmethod
    def rings(event: Any) -> None:
        """Be told of a change."""

    async def ends(self) -> None:
        """Close a client, and open another in its place."""
        number = self.some_client()
        await self.hears()
        await self.parties[number].store.close()
        self.tickets = [one for one in self.tickets if one[0] != number]
        self.parties[number] = self.party()
        await self.parties[number].transports.ready(self.harness.now() + WITHIN)

    async def expires(self) -> None:
        """Let the server end the session of a client, which begins another."""
        number = self.some_client()
        await self.hears()
        self.parties[number].transports.expire()
        await self.harness.sleep(5.0)
        await self.parties[number].transports.ready(self.harness.now() + WITHIN)


STEPS: list[Callable[[Playing], Awaitable[None]]] = [Playing.claims] * 8 + [Playing.leaves] * 3 + [Playing.asks] * 5
STEPS += [Playing.renews, Playing.looks, Playing.changes_a_cell, Playing.changes_a_cell]
STEPS += [Playing.ends, Playing.expires]


def _sorted(answer: Any) -> Any:
    """Return lists of names in order: a server tells them in any."""
    if isinstance(answer, tuple):
        return tuple(map(_sorted, answer))
    names = isinstance(answer, list) and all(isinstance(one, str) and "/" not in one for one in answer)
    return sorted(answer) if names else answer


def _shown(form: Any) -> str:
    if type(form).__name__ == "Transaction":
        return f"all or none: {', '.join(map(_shown, form.operations))}"
    words = {name: value for name, value in form._asdict().items() if name not in ("acl", "watcher")}
    watches = " watches" if getattr(form, "watcher", None) else ""
    return f"{type(form).__name__}{watches} {' '.join(map(str, words.values()))}"


def _brief(answer: Any) -> str:
    if isinstance(answer, list):
        return f"[{', '.join(map(_brief, answer))}]"
    return type(answer).__name__ if isinstance(answer, Answer) else repr(answer)


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[ZooKeeperServer]:
    """A server to which nobody else writes, and that removes no container meanwhile."""
    with ZooKeeperServer(properties={"znode.container.checkIntervalMs": "100000000"}) as server:
        outlive.add(server.pid)
        yield server


def play(server: ZooKeeperServer) -> Play:
    """Return what plays sequences on a server and on a model."""

    def sequence(seed: int, steps: Steps) -> Counter[str]:
        harness, seen = SimulatedHarness(seed), Counter[str]()

        async def body(_: Harness) -> None:
            playing = Playing(harness, server, seed)
            await playing.play(steps)
            seen.update(playing.seen)

        harness.run(body)
        return seen

    return sequence


THERE = (
    *("Create2", "_Container", "Delete", "SetData", "GetData", "Exists", "GetChildren", "GetChildren2", "Transaction"),
    *(
        "Sync",
        "NoNode",
        "NodeExists",
        "BadVersion",
        "NotEmpty",
        "StoreRefused",
        "NameInUse",
        "rings",
        "ends",
        "expires",
    ),
)
"""What a day's sequences have in them."""


@pytest.mark.timeout(300)
def test_the_model_answers_as_the_server_does(server: ZooKeeperServer, record_property: Any) -> None:
    seen = compare_many(play(server), BY_DAY, LENGTH)
    record_property("sum:simulation: requests to ZooKeeper and its model", sum(seen[what] for what in THERE[:10]))
    assert {what for what in THERE if not seen[what]} <= {"ends", "expires"}  # of which there are few


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_model_answers_as_the_server_does_in_thousands_of_sequences(server: ZooKeeperServer) -> None:
    seen = compare_many(play(server), BY_NIGHT, LENGTH)
    assert all(seen[what] for what in THERE)


def counts_those_there(tree: Tree, write: Write) -> None:
    """Number a new child by how many there are, not by how many there were."""
    APPLY(tree, write)
    for node in tree.nodes.values():
        node.made = len(node.children)


def of_any_version(ensemble: Ensemble, tree: Tree, form: Any, owner: int) -> Sequence[tree.Change]:
    """Change what has another version, too."""
    return CHANGES(ensemble, tree, form._replace(version=-1) if hasattr(form, "version") else form, owner)


def some_or_none(ensemble: Ensemble, forms: Sequence[Any], owner: int) -> list[Any]:
    """Carry out what comes before a part that does not fit."""
    return [made for form in forms for made in WRITE(ensemble, [form], owner)]


def leaves_them_there(ensemble: Ensemble, number: int) -> None:
    """Let the nodes of a session stay when it ends."""
    ensemble.sessions.pop(number, None)


def tells_parents_nothing(member: Member, change: tree.Change) -> None:
    """Tell nobody who watches the children of a node that there are others."""
    member._children.pop(change.path.rpartition("/")[0] or "/", {})
    FIRE(member, change)


APPLY, CHANGES, WRITE, FIRE = Tree.apply, Ensemble._changes, Ensemble.write, Member._fire
MISTAKES = [
    (Tree, "apply", counts_those_there),
    (Ensemble, "_changes", of_any_version),
    (Ensemble, "write", some_or_none),
    (Ensemble, "end", leaves_them_there),
    (Member, "_fire", tells_parents_nothing),
]


@pytest.mark.parametrize(("where", "what", "mistake"), MISTAKES, ids=[mistake[1] for mistake in MISTAKES])
def test_a_model_that_is_wrong_differs(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, where: type, what: str, mistake: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, what, mistake)
    assert differs(play(server), BY_DAY, LENGTH)


SHORT = 1.0
"""Seconds of a session that nobody keeps alive."""

BUSY = 1.0
"""Seconds by which a busy machine may hold the server up."""


def test_a_session_of_which_nothing_is_heard_ends_when_the_model_says(server: ZooKeeperServer) -> None:
    """Its time is over at a whole tick, the next one after its timeout, and its nodes are gone then."""
    assert SHORT <= ended_in_the_model() <= SHORT + TICK + 0.1
    assert SHORT - 0.1 <= really_ended(server) <= SHORT + TICK + BUSY


def really_ended(server: ZooKeeperServer) -> float:
    """Return after how many seconds without a word a node of a session was gone."""
    with server.connect() as eyes, server.connect(timeout=SHORT) as silent:
        path = silent.create(f"/ends-{secrets.token_hex(4)}", b"", ephemeral=True)
        began = time.monotonic()
        silent._stopped.set()  # it does not come back
        silent._connection._socket.shutdown(2)
        while eyes.exists(path):
            assert time.monotonic() < began + WITHIN
            time.sleep(0.01)
        return time.monotonic() - began


def ended_in_the_model() -> float:
    """Return the same of the model."""
    harness = SimulatedHarness(secrets.randbits(32))

    async def body(_: Harness) -> float:
        await harness.sleep(harness.scheduler.random.random())
        ensemble = Ensemble(harness.scheduler, ("z0",))
        session, began = ensemble.begin(SHORT), harness.scheduler.time
        ensemble.write([Requests(SETTINGS).create("/ends", b"", EPHEMERAL).form], session)
        while "/ends" in ensemble.tree.nodes:
            await harness.sleep(0.01)
        return harness.scheduler.time - began

    return harness.run(body)


SETTINGS = Settings((("127.0.0.1", 2181),))


@pytest.mark.nightly
def test_containers_are_removed_as_the_model_does() -> None:
    """Those that have had children and have none; the others stay, and so do those whose last child stays."""
    containers, child = ("/never", "/emptied", "/emptied/too", "/kept"), "/emptied/too/child"
    ensemble, requests = Ensemble(SimulatedHarness(1).scheduler, ("z0",)), Requests(SETTINGS)
    forms = [requests.create(path, b"", CONTAINER).form for path in containers]
    forms += [requests.create(path, b"", 0).form for path in ("/kept/child", child)] + [requests.delete(child).form]
    with ZooKeeperServer(properties={"znode.container.checkIntervalMs": "200"}) as server, server.connect() as client:
        for form in forms:
            ensemble.write([form], 0)
            answer = client.handler.async_result()
            client._call(form, answer)
            answer.get()
        for _ in containers:
            ensemble.sweep()
        left = [path for path in containers if path in ensemble.tree.nodes]
        until = time.monotonic() + WITHIN
        while [path for path in containers if client.exists(path)] != left:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert left == ["/never", "/kept"]

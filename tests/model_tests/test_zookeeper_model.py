"""The model of ZooKeeper beside a real server: the same requests, the same answers, and the same watches that ring.

Clients of the shipped store live in a simulated runtime; each of their requests goes to the model and, by a session of
kazoo, to the real server. Other clients come between the requests of one claim, answers are lost, sessions end by
themselves or are ended. Beside that go requests of all sorts on the same nodes, with versions of now and of before.

There is one member, which never lags: what a member answers that does is another each time. Numbers of writes and of
sessions are other ones at both; what has the same at one must have the same at the other, and in the same order.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from model_pairs.zookeeper import WITHIN
from model_sequences import Play, Steps, compare_many, differs
from zookeeper_sequences import LENGTH, Playing

from leasehold.stores.zookeeper.connection.requests import (
    CONTAINER,
    EPHEMERAL,
    Requests,
)
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.servers import ZooKeeperServer
from models.zookeeper import tree
from models.zookeeper.ensemble import TICK, Ensemble, Member
from models.zookeeper.tree import Tree, Write

BY_DAY, BY_NIGHT = 20, 3_000


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[ZooKeeperServer]:
    """A server without other writers, that removes no container meanwhile."""
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
    """Do not notify the watchers of a node's children of new ones."""
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
"""Seconds of a session that is not kept alive."""

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

"""The model of etcd beside a real server: the same requests, the same answers, and the same deletions heard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from etcd_sequences import Playing
from model_sequences import Ear, Play, compare_many, differs

from leasehold.stores.etcd import keys
from leasehold.stores.etcd.keys import Json
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.servers import EtcdServer
from models.etcd import state
from models.etcd.members import Member, cluster_of
from models.etcd.state import LATE, LEAST_TTL, Cluster

BY_DAY, BY_NIGHT = 20, 5_000
LENGTH = 40


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[EtcdServer]:
    """A server with etcd's usual timers, without other writers."""
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

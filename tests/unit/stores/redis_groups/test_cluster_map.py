"""The slot map of a cluster's client: a redirection lets it be read again, and nodes that joined later are known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from leasehold._model import RenewalResult
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.cluster.topology import REFRESH_EVERY, Address
from leasehold.stores.redis.connection.base import SHARD_MARK, Redirected, ReplyError, RetryableError
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.settings import Settings
from support.stores.redis.told_nodes import A, B, C, D, E, Node, Nodes, Used, both


@both
async def test_a_redirection_lets_the_map_be_read_again(client: Used, cluster: Nodes) -> None:
    """Once, and not more often than it may be: each read is connections to three nodes."""
    await client.acquire()
    assert cluster.asked("SLOTS") == [A]
    cluster.owners = [D, E]
    client.later += 2 * REFRESH_EVERY
    for _ in range(3):
        await client.acquire()
        client.later += 2 * REFRESH_EVERY
    assert cluster.asked("ok")[1:] == 3 * [cluster.owner([D, E])]
    assert len(cluster.asked("SLOTS")) == 3  # A, B and C
    assert SHARD_MARK in cluster.made[cluster.owner([D, E])][-1].channel
    assert all(node.closed for node in cluster.made[A])


@both
async def test_a_caller_whose_node_is_known_does_not_wait_for_the_map(client: Used, cluster: Nodes) -> None:
    """A slot has moved between two nodes, and a third one hangs, which is asked for the map, too."""
    await client.acquire()
    cluster.owners, cluster.hung = [B, C, A], client.runtime.signal()
    client.later += 2 * REFRESH_EVERY
    began = client.runtime.now()
    for _ in range(3):
        await client.store.try_acquire("x", client.ticket(), join=False, within=30.0)
    assert client.runtime.now() - began < 0.9
    assert cluster.asked("SLOTS") == [A]
    cluster.hung.set()
    await client.read()
    assert len(cluster.asked("SLOTS")) == 3
    await client.store.close()


@both
async def test_a_listing_keeps_to_its_time(client: Used, cluster: Nodes) -> None:
    """Reading the map, and asking all nodes, share the time. Each took its own, the map 5 s."""
    await client.store.inspect("")
    client.store._topology.suspect(A)
    client.later += 2 * REFRESH_EVERY
    given = list[float]()

    async def silent(node: Node, commands: Sequence[bytes], *, within: float) -> list[Any]:
        given.append(within)
        client.later += within / 3  # three are asked for the map at once
        raise RetryableError(f"{node.address} is silent")

    client.patch(Node, "call_all", silent)
    began = client.runtime.now()
    with pytest.raises(StoreUnavailable):
        await client.store.inspect("", within=0.6)
    assert client.runtime.now() - began < 0.9, given


@both
async def test_a_successor_is_found_when_all_nodes_of_the_first_map_are_gone(client: Used, cluster: Nodes) -> None:
    """No node of the URL is left either. Those that redirections have named know the map."""
    await client.acquire()
    cluster.owners = [D, D]
    await client.acquire()  # redirected, within the time in which the map is not read again
    cluster.gone = {A, B, C}
    client.later += 2 * REFRESH_EVERY
    await client.acquire()
    assert client.store._topology.map is not None
    assert client.store._topology.map.primaries == [D]
    cluster.owners, cluster.named = [E, E], {D: [D, E]}
    client.store._topology.suspect(D)
    client.later += 2 * REFRESH_EVERY
    await client.acquire()
    assert cluster.asked("ok")[-1] == E


@both
async def test_the_node_of_the_url_is_asked_while_many_known_ones_are_silent(client: Used, cluster: Nodes) -> None:
    """All have new addresses, as after all pods were replaced; what is sent to the old ones gets no answer in time."""
    old = [(f"10.0.0.{number}", 1) for number in range(30)]
    cluster.named = {A: old}
    await client.store.inspect("")
    topology, ask = client.store._topology, Node.call_all
    assert topology.map is not None
    assert topology.map.primaries == old

    async def slow(node: Node, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if node.address in cluster.gone:
            client.later += within / 3  # three are asked at once
        return await ask(node, commands, within=within)

    client.patch(Node, "call_all", slow)
    cluster.gone, cluster.named = {*old}, {}
    client.later += 2 * REFRESH_EVERY
    topology.suspect(old[0])
    began = client.runtime.now()
    assert (await topology.fresh(2.0)).primaries == [A, B, C]
    assert client.runtime.now() - began < 1.5


@both
async def test_the_store_of_a_node_that_an_older_map_does_not_know_stays_open(client: Used, cluster: Nodes) -> None:
    """The nodes that are asked for the map may learn of a move after the node that redirects."""
    await client.acquire()
    cluster.owners, cluster.named = [D, D, D], {node: [A, B, C] for node in (A, B, C, D)}
    client.later += 2 * REFRESH_EVERY
    for _ in range(4):
        await client.acquire()
        client.later += 2 * REFRESH_EVERY
    assert [node.closed for node in cluster.made[D] if node.channel] == [False]
    assert cluster.asked("ok")[1:] == 4 * [D]


@both
async def test_a_node_without_enough_replicas_is_asked_again(client: Used, cluster: Nodes) -> None:
    """One that was just promoted has none yet. One that was cut off has a successor soon."""
    refusal = ReplyError("NOREPLICAS Not enough good replicas to write.")
    cluster.refusals = [refusal] * 2
    await client.acquire()
    cluster.refusals = [refusal] * 999
    with pytest.raises(StoreUnavailable, match=r"NOREPLICAS.*check the replicas") as caught:
        await client.acquire(0.1)
    assert not caught.value.unknown
    assert client.store._topology.suspected(cluster.owner([A, B, C]))


@both
async def test_a_read_that_fails_is_not_repeated_by_each_caller(client: Used, cluster: Nodes) -> None:
    """The node that a redirection has named serves; each attempt to read the map may take a second of its callers."""
    await client.acquire()
    cluster.owners = [D, D, D]
    await client.acquire()
    cluster.asked("SLOTS")
    cluster.mute = {A, B, C, D}
    for _ in range(5):
        client.later += 2 * REFRESH_EVERY
        await client.acquire()
    assert sorted(cluster.asked("mute")) == [A, B, C, D]


@both
async def test_an_exit_while_old_nodes_are_closed_leaves_none_open(client: Used, cluster: Nodes) -> None:
    """The caller that has read the map may be cancelled, or a signal handler may raise. Waiters are woken before."""
    await client.store.inspect("")
    old = [client.store._nodes.at(node) for node in (A, B, C)]
    woken = list[Address]()
    for store in old:
        client.patch(store, "wake_all", partial(woken.append, store.address))
    cluster.exits, cluster.owners = (
        SystemExit if isinstance(client.runtime, BlockingRuntime) else asyncio.CancelledError,
        [D, D, D],
    )
    client.later += 2 * REFRESH_EVERY
    client.store._topology.suspect(A)
    with pytest.raises(cluster.exits):
        await client.store._refresh(1.0)
    assert woken == [A, B, C]
    await client.store.close()
    assert all(cluster.made[node][-1].closed for node in (A, B, C))


@both
async def test_a_node_that_hangs_does_not_delay_names_that_another_node_redirects(client: Used, cluster: Nodes) -> None:
    """All nodes are asked at once. A name in a slot that migrates needs a second and a third question."""
    at_a, at_b = (next(f"n{n}" for n in range(99) if cluster.owner([A, B, C], f"n{n}") == node) for node in (A, B))
    await client.store.inspect("")
    imported = client.runtime.signal()

    async def renew(node: Node, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if node.address == A and not await imported.wait(within):
            raise RetryableError("A hangs")
        if node.address == B:
            return [ReplyError("ASK 1 c:1") for _ in commands]
        imported.set()
        return [b"OK" if b"ASKING" in command else [1] for command in commands]

    client.patch(Node, "call_all", renew)
    tickets = [(name, client.ticket()) for name in (at_a, at_b)]
    assert await client.store.renew(tickets, within=1.0) == [RenewalResult.HELD] * 2


def test_a_redirection_of_a_subscription_without_a_host_means_the_same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``cluster-preferred-endpoint-type unknown-endpoint`` a node names only the port of another."""
    settings = Settings("h:1", mode="cluster").at("h", 1)
    transport = BlockingTransport(BlockingRuntime(), settings, b"channel", lambda message: None, lambda: None)

    async def exchange(*_: Any) -> list[Any]:
        return [ReplyError("MOVED 1234 :6380")]

    monkeypatch.setattr(transport, "_exchange", exchange)
    with pytest.raises(Redirected) as caught:
        finish(transport._subscribe(None, 1.0))  # type: ignore[arg-type]
    assert caught.value.address == ("h", 6380)

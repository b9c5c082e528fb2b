"""A server's clock is stepped, under load: it breaks what the page of that deployment says, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from leasehold import LeaseLost, tables
from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import (
    MariaDBServer,
    Node,
    PostgresServer,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    RedlockNodes,
)
from leasehold_lab.servers.clock import ClockedServer
from support.flavors import both
from support.stores.failover_load import LEASE, NOISE, Load

FAR = 60.0
"""Seconds of a step: far more than any lease here."""

NAMES = ["a", "b", "c"]


def with_clocks(*servers: Any) -> None:
    for server in servers:
        server.give_clock()


@contextmanager
def redlock(count: int = 5) -> Iterator[RedlockNodes]:
    nodes = RedlockNodes(count)
    with_clocks(*nodes.nodes)
    with nodes:
        yield nodes


def step(server: ClockedServer, seconds: float) -> None:
    assert server.clock is not None
    server.clock.step(seconds)


def loaded(harness: Harness, url: str, namespace: str, disturb: Any, **options: Any) -> Load:
    """Run the load while ``disturb(load)`` goes on, and check it."""
    loads: list[Load] = []

    async def body(harness: Harness) -> None:
        load = Load(harness, url, namespace, NAMES, **options)
        loads.append(load)
        await load.run(lambda: disturb(load))
        load.check()

    harness.run(body)
    return loads[0]


# --- one server ----------------------------------------------------------------------------------------------------


@both
def test_the_clock_of_a_server_steps_under_load(harness: Harness, namespace: str) -> None:
    """A step forward ends leases early, and holders are notified; a step back extends them. Tokens always increase."""
    server = RedisServer()
    with_clocks(server)
    with server:

        def disturb(load: Load) -> None:
            load.wait_service(LEASE + NOISE)
            for seconds in (FAR, -2 * FAR, FAR):
                step(server, seconds)
                load.wait_service(2 * LEASE + NOISE)

        loaded(harness, server.url, namespace, disturb)


@both
def test_a_step_forward_takes_a_lock_away_and_its_holder_is_told(harness: Harness, namespace: str) -> None:
    server = RedisServer()
    with_clocks(server)
    with server:

        async def body(harness: Harness) -> None:
            locks, others = (harness.client(server.url, namespace=namespace) for _ in range(2))
            first = await locks.lock("x", lease=LEASE).acquire()
            step(server, FAR)
            second = await others.lock("x", lease=LEASE).acquire(timeout=0)
            assert second.token > first.token
            began = harness.now()
            while not first.lost:
                assert harness.now() - began < LEASE / 3 + NOISE  # its next renewal
                await harness.sleep(0.01)
            assert not second.lost
            await second.release()
            with pytest.raises(LeaseLost):
                await first.release()

        harness.run(body)


async def free_after_a_lease(harness: Harness, url: str, namespace: str, stepped: Sequence[ClockedServer]) -> None:
    """Set clocks back while a holder is dead: its name is free within one more lease."""
    locks, others = (harness.client(url, namespace=namespace) for _ in range(2))
    dead = await locks.lock("x", lease=LEASE, renew=False).acquire()
    await harness.sleep(0.3)
    for server in stepped:
        step(server, -FAR)
    began = harness.now()
    later = await others.lock("x", lease=LEASE).acquire(timeout=FAR / 2)
    assert harness.now() - began < LEASE + NOISE
    assert later.token > dead.token
    assert dead.lost
    await later.release()


@both
@pytest.mark.parametrize("kind", [RedisServer, PostgresServer, MariaDBServer])
def test_a_step_back_keeps_a_dead_holders_lock_for_one_more_lease_at_most(
    harness: Harness, namespace: str, kind: type[RedisServer | PostgresServer | MariaDBServer]
) -> None:
    server = kind()
    with_clocks(server)
    with server:
        if kind is not RedisServer:
            tables.create(server.url)

        async def body(harness: Harness) -> None:
            await free_after_a_lease(harness, server.url, namespace, [server])

        harness.run(body)


@both
def test_the_clock_of_a_primary_steps_under_load(harness: Harness, namespace: str) -> None:
    """And then a replica is promoted whose clock has not: its tokens are higher all the same."""
    group = RedisSentinel(replicas=2)
    with_clocks(*group.nodes)
    with group:

        def disturb(load: Load) -> None:
            load.wait_service(10.0)
            old: Node = group.primary
            for seconds in (FAR, -FAR):
                step(old, seconds)
                load.wait_service(2 * LEASE + 2 * NOISE)
            step(old, 0.8)  # what is granted now is ahead of the successor's clock, by less than the failover takes
            load.wait_service(2 * LEASE + 2 * NOISE)
            old.kill()
            load.wait_service(10.0)

        loaded(harness, group.url, namespace, disturb)


# --- Redlock -------------------------------------------------------------------------------------------------------


@both
def test_the_clocks_of_two_of_five_nodes_step_under_load(harness: Harness, namespace: str) -> None:
    """Tokens increase, no guarded write goes backwards, losers of a lock are notified, and all continue."""
    with redlock() as nodes:

        def disturb(load: Load) -> None:
            load.wait_service(10.0)
            for seconds in (FAR, -2 * FAR):
                for node in nodes.nodes[:2]:
                    step(node, seconds)
                    load.wait_service(3 * LEASE + 2 * NOISE)

        loaded(harness, nodes.url, namespace, disturb, fair=False)


@both
def test_one_node_whose_clock_steps_forward_takes_no_lock_away(harness: Harness, namespace: str) -> None:
    """Four votes are left, and then three. A node votes for no token that it knows, so they are away until the next."""
    with redlock() as nodes:

        async def body(harness: Harness) -> None:
            locks, others = (harness.client(nodes.url, namespace=namespace) for _ in range(2))
            hold = await locks.lock("x", lease=LEASE).acquire()
            await harness.sleep(0.2)
            for node in nodes.nodes[:2]:
                step(node, FAR)
                assert await others.lock("x", lease=LEASE).acquire(timeout=0.1) is None
            await harness.sleep(LEASE)
            hold.raise_if_lost()
            await hold.release()
            again = await others.lock("x", lease=LEASE).acquire(timeout=5)
            await harness.sleep(0.2)
            tokens = [node.command("HGET", keys.node_keys(namespace, "x")[0], "f") for node in nodes.nodes]
            assert tokens == [str(again.token)] * 5
            await again.release()

        harness.run(body)


@both
def test_votes_for_a_dead_holder_last_once_more_on_nodes_whose_clocks_step_back(
    harness: Harness, namespace: str
) -> None:
    with redlock(3) as nodes:

        async def body(harness: Harness) -> None:
            await free_after_a_lease(harness, nodes.url, namespace, nodes.nodes[:2])

        harness.run(body)


@both
def test_a_node_of_both_majorities_whose_clock_steps_breaks_exclusion_and_no_more(
    harness: Harness, namespace: str
) -> None:
    """A, B and C vote; C's clock steps; C, D and E vote again. Two hold at a time: the later has the higher token."""
    with redlock() as nodes:
        a, b, c, d, e = nodes.nodes

        async def body(harness: Harness) -> None:
            url = nodes.url
            locks, others = (harness.client(url, namespace=namespace, response_timeout=2.0) for _ in range(2))
            for away in (d, e):
                away.kill()
            first = await locks.lock("x", lease=LEASE).acquire(timeout=5)
            for back in (d, e):
                back.start()
            step(c, FAR)
            for away in (a, b):
                away.pause()
            second = None
            while second is None and first.remaining > 0.1:
                second = await others.lock("x", lease=LEASE).acquire(timeout=0.5)
            for back in (a, b):
                back.resume()
            assert second is not None, "C gave its vote away, D and E never gave theirs"
            assert first.remaining > 0, "the fault that is to be shown did not happen"
            assert second.token > first.token  # so a resource that checks tokens refuses the first
            began = harness.now()
            while not first.lost:
                assert harness.now() - began < LEASE + NOISE
                await harness.sleep(0.01)
            await second.release()

        harness.run(body)


# --- clusters ------------------------------------------------------------------------------------------------------


@both
@pytest.mark.nightly
def test_the_clock_of_a_shard_steps_under_load(harness: Harness, namespace: str) -> None:
    group = RedisCluster()
    with_clocks(*group.nodes)
    with group:

        def disturb(load: Load) -> None:
            load.wait_service(10.0)
            for node in group.primaries:
                for seconds in (FAR, -FAR):
                    step(node, seconds)
                    load.wait_service(2 * LEASE + 2 * NOISE)

        loaded(harness, group.url, namespace, disturb)


def test_a_clock_of_its_own_is_stepped_and_no_other() -> None:
    stepped, other = RedisServer(), RedisServer()
    with_clocks(stepped)
    with stepped, other:
        step(stepped, -FAR)
        seconds = [int(str(server.command("TIME")[0])) for server in (stepped, other)]  # type: ignore[index]
        assert FAR - 2 < seconds[1] - seconds[0] < FAR + 2
        assert abs(seconds[1] - time.time()) < 2

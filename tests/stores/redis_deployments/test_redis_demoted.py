"""Clients whose connections to a former primary outlive the change of roles.

Waiters subscribed there also receive what the new primary publishes. It does not count these subscribers, so it takes a
grant to one of them back, and grants the next waiter. And what is read there may be old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from leasehold import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import Node, RedisCluster, RedisReplicas
from support.flavors import both

LEASE = 30.0


async def all_enter_in_turn(harness: Harness, url: str, namespace: str, switch: Callable[[], None]) -> None:
    """Let two wait while a third holds, on servers that change roles meanwhile: they acquire one by one."""
    async with (
        harness.client(url, namespace=namespace) as holder,
        harness.client(url, namespace=namespace) as first,
        harness.client(url, namespace=namespace) as second,
    ):
        hold = await holder.lock("a", lease=LEASE).acquire()
        assert hold is not None
        jobs = [
            harness.spawn(lambda client=client: client.lock("a", lease=LEASE).acquire(timeout=LEASE))
            for client in (first, second)
        ]
        while len((await holder.inspect("a")).waiters) < 2:
            await harness.sleep(0.02)
        await harness.sleep(0.3)  # both listen
        switch()
        await harness.sleep(0.3)
        await hold.release()
        while jobs:
            began = harness.now()
            while not (entered := [job for job in jobs if job.done()]):
                assert harness.now() - began < LEASE / 3 + 2.0
                await harness.sleep(0.02)
            await harness.sleep(0.3)
            entered = [job for job in jobs if job.done()]
            assert len(entered) == 1, "two hold what only one may"
            jobs.remove(entered[0])
            got = await entered[0].result()
            assert got is not None
            assert not got.lost
            await got.release()


@both
def test_waiters_at_a_replica_that_was_the_primary(harness: Harness, namespace: str) -> None:
    """The address in front leads to the new primary, and connections to the old one stay."""
    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas
        with FaultProxy(old.port) as proxy:

            def switch() -> None:
                group.catch_up()
                group.promote(new)
                proxy._carrier.target = ("127.0.0.1", new.port)

            url = f"redis://127.0.0.1:{proxy.port}"
            harness.run(lambda harness: all_enter_in_turn(harness, url, namespace, switch))


@both
def test_a_value_is_never_read_from_a_former_primary(harness: Harness, namespace: str) -> None:
    """It follows no longer what happens, but would answer reads for as long as the connection lasts."""

    async def body(harness: Harness) -> None:
        async with (
            harness.client(url, namespace=namespace) as reader,
            harness.client(there, namespace=namespace) as other,
        ):
            value, latch = reader.versioned("v"), reader.latch("l", 1)
            await value.put(b"one")
            waiting = harness.spawn(lambda: opened(latch))
            await harness.sleep(0.3)
            group.catch_up()
            new.command("REPLICAOF", "NO", "ONE")
            old.command("REPLICAOF", "127.0.0.1", "1")
            proxy._carrier.target = ("127.0.0.1", new.port)
            await other.versioned("v").put(b"two")
            await other.latch("l", 1).count_down()
            with suppress(StoreUnavailable):  # only the first who asks, this one or the latch
                assert (await value.get()).value == b"two"
            assert (await value.get()).value == b"two"
            began = harness.now()
            while not waiting.done():
                assert harness.now() - began < 5.0, "it waits for a latch that is open"
                await harness.sleep(0.02)
            await waiting.result()

    async def opened(latch: Any) -> None:
        try:
            assert await latch.wait(timeout=30.0)
        except StoreUnavailable:
            pass

    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas
        with FaultProxy(old.port) as proxy:
            url, there = f"redis://127.0.0.1:{proxy.port}", f"redis://127.0.0.1:{new.port}"
            harness.run(body)


@both
def test_a_leader_is_never_looked_up_at_a_former_primary(harness: Harness, namespace: str) -> None:
    async def body(harness: Harness) -> None:
        async with (
            harness.client(url, namespace=namespace) as looker,
            harness.client(there, namespace=namespace) as other,
        ):
            lead = looker.election("e")
            assert await lead.leader() is None
            group.catch_up()
            new.command("REPLICAOF", "NO", "ONE")
            old.command("REPLICAOF", "127.0.0.1", "1")
            proxy._carrier.target = ("127.0.0.1", new.port)
            async with other.election("e"):
                with pytest.raises(StoreUnavailable, match="READONLY"):
                    await lead.leader()
                assert await lead.leader() is not None

    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas
        with FaultProxy(old.port) as proxy:
            url, there = f"redis://127.0.0.1:{proxy.port}", f"redis://127.0.0.1:{new.port}"
            harness.run(body)


@both
@pytest.mark.parametrize("layout", ["plain", "redisson", "spring&registry=r", "python-redis-lock"])
def test_a_lock_of_a_layout_is_never_looked_at_on_a_former_primary(
    harness: Harness, namespace: str, layout: str
) -> None:
    async def body(harness: Harness) -> None:
        async with (
            harness.client(f"{url}?layout={layout}", namespace=namespace) as looker,
            harness.client(f"{there}?layout={layout}", namespace=namespace) as other,
        ):
            assert await looker.inspect("a") is None
            group.catch_up()
            new.command("REPLICAOF", "NO", "ONE")
            old.command("REPLICAOF", "127.0.0.1", "1")
            proxy._carrier.target = ("127.0.0.1", new.port)
            hold = await other.lock("a").acquire()
            assert hold is not None
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await looker.inspect("a")
            assert await looker.inspect("a") is not None
            await hold.release()

    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas
        with FaultProxy(old.port) as proxy:
            url, there = f"redis://127.0.0.1:{proxy.port}", f"redis://127.0.0.1:{new.port}"
            harness.run(body)


@both
def test_waiters_at_a_node_that_took_over_and_gave_back(harness: Harness, namespace: str) -> None:
    """They subscribed before they knew that it is a primary, so their channel belongs to no shard."""
    with RedisCluster(primaries=3, replicas=1) as cluster:
        lock = keys.mutex_keys(namespace, "a")[0]

        def switch() -> None:
            old = cluster.primary_of(lock)
            (new,) = cluster.replicas_of(old)
            take_over(cluster, lock, new)
            time.sleep(1.0)  # all wait there by now
            take_over(cluster, lock, old)

        harness.run(lambda harness: all_enter_in_turn(harness, cluster.url, namespace, switch))


def take_over(cluster: RedisCluster, key: bytes, node: Node) -> None:
    cluster.ask_to_take_over(node)
    cluster.wait_until(lambda: cluster.primary_of(key) is node, 10.0, "the replica has taken over")

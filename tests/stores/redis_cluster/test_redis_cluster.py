"""Cases of clusters alone: one dead shard, names of many nodes in one batch, what an acquire costs there."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
from cluster_names import names_on

from leasehold import Client, StoreUnavailable
from leasehold._model import LeaseTerms, LockMode, Owner, RenewalResult, Ticket, ticket_id
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.redis import scripts
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisCluster
from support.flavors import both

LEASE = 1.2
NOISE = 1.0


@both
def test_names_of_all_nodes_are_held_renewed_and_listed(
    cluster: RedisCluster, harness: Harness, namespace: str
) -> None:
    wanted = [name for names in names_on(cluster, namespace, 4).values() for name in names]

    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            holds = [await locks.lock(name, lease=LEASE).acquire() for name in wanted]
            readers = [await locks.rw_lock(f"r{name}", lease=LEASE).reader().acquire() for name in wanted]
            await harness.sleep(LEASE * 1.5)
            assert not any(hold.lost for hold in [*holds, *readers])
            assert [info.name for info in await locks.holds("n")] == sorted(wanted)
            for hold in [*holds, *readers]:
                await hold.release()
            assert await locks.holds() == []

    harness.run(body)


@both
def test_a_dead_shard_does_not_affect_locks_of_others(harness: Harness, namespace: str) -> None:
    """A node that does not reply delays its own renewals; those of the other nodes are in time."""
    with RedisCluster(replicas=0, full_coverage=False, node_timeout=1.0) as cluster:
        by_node = names_on(cluster, namespace, 3)
        dead = cluster.primaries[1]

        async def body(harness: Harness) -> None:
            async with harness.client(cluster.url, namespace=namespace, response_timeout=2.0) as locks:
                holds = {
                    node: [await locks.lock(name, lease=LEASE).acquire() for name in names]
                    for node, names in by_node.items()
                }
                dead.pause()
                began = harness.now()
                while not all(hold.lost for hold in holds[dead]):
                    assert harness.now() - began < LEASE + NOISE, "who lost a lock was not told"
                    await harness.sleep(0.01)
                await harness.sleep(2 * LEASE)  # longer than any lease that was not renewed
                for node, those in holds.items():
                    assert all(hold.lost is (node is dead) for hold in those)
                for node, names in by_node.items():
                    if node is not dead:
                        began = harness.now()
                        other = await locks.lock(f"{names[0]}", lease=LEASE).acquire(timeout=0)
                        assert other is None
                        assert harness.now() - began < NOISE
                for node, those in holds.items():
                    for hold in those:
                        if node is not dead:
                            await hold.release()
                with pytest.raises(StoreUnavailable):
                    await locks.lock(by_node[dead][0]).acquire(timeout=0)
                dead.resume()
                again = await locks.lock(by_node[dead][0], lease=LEASE).acquire(timeout=5)
                assert again is not None
                await again.release()

        harness.run(body)


def test_renewals_do_not_wait_for_a_dead_shard(namespace: str) -> None:
    """All nodes are called at once: while one does not reply, the others have renewed."""
    with RedisCluster(replicas=0, full_coverage=False) as cluster, Client.from_url(cluster.url) as locks:
        store, runtime = locks.store, BlockingRuntime()
        dead, *alive = cluster.primaries
        by_node = names_on(cluster, "default", 1)
        terms = LeaseTerms(LockMode(), Owner("host", 1, "x"), 30.0, 0.0, "")
        tickets = [(by_node[node][0], Ticket(ticket_id(runtime.random_bytes(16)), terms)) for node in (dead, *alive)]
        for name, ticket in tickets:
            finish(store.try_acquire(name, ticket, join=False, within=5.0))
        for node in alive:
            node.reset_stats()
        dead.pause()
        results: list[RenewalResult] = []
        thread = threading.Thread(target=lambda: results.extend(finish(store.renew(tickets, within=3.0))))
        thread.start()
        began = time.monotonic()
        while not all(node.commandstats().get("evalsha", 0) + node.commandstats().get("eval", 0) for node in alive):
            assert time.monotonic() - began < 1.5
            time.sleep(0.02)
        assert thread.is_alive()  # it still waits for the dead one
        thread.join()
        dead.resume()
        assert results == [RenewalResult.UNKNOWN, RenewalResult.HELD, RenewalResult.HELD]


@both
def test_subscriptions_are_bounded_by_the_nodes(cluster: RedisCluster, harness: Harness, namespace: str) -> None:
    """A client that waits for many names subscribes to one channel of each node."""
    by_node = names_on(cluster, namespace, 5)
    names = [name for those in by_node.values() for name in those]

    async def body(harness: Harness) -> None:
        async with (
            harness.client(cluster.url, namespace=namespace) as first,
            harness.client(cluster.url, namespace=namespace) as second,
        ):
            holds = [await first.lock(name).acquire() for name in names]
            jobs = [harness.spawn(lambda name=name: second.lock(name).acquire(timeout=20)) for name in names]
            while len([info for info in await first.holds() if info.waiters]) < len(names):
                await harness.sleep(0.02)
            for node in cluster.primaries:
                channels: Any = node.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*")
                assert len(channels) <= 1
            for hold in holds:
                await hold.release()
            for job in jobs:
                await (await job.result()).release()

    harness.run(body)


@both
def test_an_uncontended_pair_costs_two_commands(cluster: RedisCluster, harness: Harness, namespace: str) -> None:
    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            await (await locks.lock("a").acquire()).release()
            for node in cluster.primaries:
                node.reset_stats()
            for _ in range(10):
                await (await locks.lock("a").acquire()).release()
            asked = {"config|resetstat", "info"}
            counts: dict[str, int] = {}
            for node in cluster.primaries:
                for command, calls in node.commandstats().items():
                    counts[command] = counts.get(command, 0) + calls
            found = [re.findall(rb"redis\.p?call\('([A-Z]+)'", script.text) for script in scripts.ALL]
            inside = {word.decode().lower() for words in found for word in words}
            assert counts.pop("evalsha") == 20
            assert {name for name in counts if name not in asked} <= inside | {"ping", "publish", "cluster|nodes"}

    harness.run(body)


def test_the_repr_of_the_store_names_servers_and_namespace(cluster: RedisCluster, namespace: str) -> None:
    with Client.from_url(cluster.url, namespace=namespace) as locks:
        assert isinstance(locks.store, ClusterStore)
        assert "127.0.0.1" in repr(locks.store)

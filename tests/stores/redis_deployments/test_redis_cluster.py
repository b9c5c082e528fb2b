"""Cases of clusters alone: slot migration, one dead shard, names of many nodes in one batch."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold import Client, StoreUnavailable
from leasehold._model import Change, LeaseTerms, LockMode, Owner, RenewalResult, Ticket, ticket_id
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.redis import keys, scripts
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness
from leasehold_lab.servers import Node, RedisCluster
from support.flavors import both
from support.patience import until

LEASE = 1.2
NOISE = 1.0


@pytest.fixture(scope="module")
def cluster(outlive: set[int]) -> Iterator[RedisCluster]:
    """Three nodes whose slots migrate to and fro; no node is killed."""
    with RedisCluster(replicas=0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


def lock_key(namespace: str, name: str) -> str:
    return keys.mutex_keys(namespace, name)[0].decode()


def moving(cluster: RedisCluster, namespace: str, name: str) -> Any:
    """Begin the migration of a name to the next node."""
    source = cluster.primary_of(lock_key(namespace, name))
    target = next(node for node in cluster.primaries if node is not source)
    return cluster.migrate(lock_key(namespace, name), target)


def names_on(cluster: RedisCluster, namespace: str, count: int) -> dict[Node, list[str]]:
    """Return so many names of each node, by node."""
    found: dict[Node, list[str]] = {node: [] for node in cluster.primaries}
    number = 0
    while any(len(names) < count for names in found.values()):
        node = cluster.primary_of(lock_key(namespace, f"n{number}"))
        if len(found[node]) < count:
            found[node].append(f"n{number}")
        number += 1
    return found


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


@pytest.mark.parametrize(
    "harness", [AsyncioHarness(), pytest.param(BlockingHarness(), marks=pytest.mark.nightly)], ids=str
)
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
def test_a_hold_survives_the_migration_of_its_slot(cluster: RedisCluster, harness: Harness, namespace: str) -> None:
    """While the slot migrates, with some keys on each node, each renewal finds the lock."""

    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=LEASE).acquire()
            reader = await locks.rw_lock("x-shared", lease=LEASE).reader().acquire()
            migration = moving(cluster, namespace, "x")
            await harness.sleep(LEASE / 2)
            assert not hold.lost
            migration.move()
            await harness.sleep(LEASE * 1.5)  # asked for by ASKING alone
            assert not hold.lost
            assert (await locks.store.compare_and_set("x", Change(b"v"))).changed
            assert migration.target.command("CLUSTER", "COUNTKEYSINSLOT", migration.slot) == 2
            migration.finish()
            await harness.sleep(LEASE * 1.5)
            assert not hold.lost
            assert not reader.lost
            await hold.release()
            await reader.release()
            assert (await locks.store.compare_and_set("x", Change())).value == b"v"

    harness.run(body)


@both
def test_an_acquire_waits_for_the_end_of_a_slot_migration(
    cluster: RedisCluster, harness: Harness, namespace: str
) -> None:
    """A free name has no keys, so neither node may serve it: TRYAGAIN until the end of the migration."""

    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            migration = moving(cluster, namespace, "y")
            job = harness.spawn(lambda: locks.lock("y", lease=LEASE).acquire(timeout=10))
            await harness.sleep(0.5)
            assert not job.done()
            migration.finish()
            hold = await job.result()
            assert hold is not None
            await hold.release()
            migration = moving(cluster, namespace, "y")
            async with harness.client(cluster.url, namespace=namespace, response_timeout=0.5) as hasty:
                began = harness.now()
                with pytest.raises(StoreUnavailable, match="TRYAGAIN"):
                    await hasty.lock("y").acquire(timeout=0)
                assert harness.now() - began < 1.0 + NOISE
            migration.finish()

    harness.run(body)


WAITER = """
import sys
from leasehold import Client
with Client.from_url(sys.argv[1], namespace=sys.argv[2]) as locks: locks.lock("k", lease=60.0).acquire()
"""


def kill_a_waiter(cluster: RedisCluster, namespace: str) -> None:
    """Leave the queue entry of a waiter for ``k`` that nobody can notify."""
    source = cluster.primary_of(lock_key(namespace, "k"))
    process = subprocess.Popen([sys.executable, "-c", WAITER, cluster.url, namespace])
    until(lambda: source.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*"), 20.0)
    process.kill()
    process.wait()
    until(lambda: not source.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*"))


@both
def test_a_release_that_removes_the_last_waiter_counts_while_the_slot_migrates(
    cluster: RedisCluster, harness: Harness, namespace: str
) -> None:
    """It was killed. The keys of waiters, once empty, count as some that have left: the script ends half-way."""

    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            hold = await locks.lock("k", lease=60.0).acquire()
            kill_a_waiter(cluster, namespace)
            migration = moving(cluster, namespace, "k")
            assert migration.source.command("CLUSTER", "COUNTKEYSINSLOT", migration.slot) == 4
            releasing = harness.spawn(hold.release)
            await harness.sleep(0.3)
            migration.finish()
            assert await releasing.result() is False, "not confirmed, and not lost"

    harness.run(body)


@both
@pytest.mark.parametrize("kind", ["writer", "permit"])
def test_nobody_is_told_of_a_grant_that_a_migration_stops(
    cluster: RedisCluster, harness: Harness, namespace: str, kind: str
) -> None:
    """The release removes the last entry of a key, which is then missing: in a slot that migrates, that is an error."""

    def lock(locks: Any) -> Any:
        return locks.rw_lock("v").writer() if kind == "writer" else locks.semaphore("v", 1)

    async def release(hold: Any) -> None:
        await hold.release()

    async def body(harness: Harness) -> None:
        async with (
            harness.client(cluster.url, namespace=namespace) as first,
            harness.client(cluster.url, namespace=namespace) as second,
            harness.client(cluster.url, namespace=namespace) as third,
        ):
            hold = await lock(first).acquire()
            waiting = harness.spawn(lambda: lock(second).acquire(timeout=20))
            while not (await first.inspect("v")).waiters:
                await harness.sleep(0.01)
            await harness.sleep(0.3)  # it listens by now
            migration = moving(cluster, namespace, "v")
            releasing = harness.spawn(lambda: release(hold))
            await harness.sleep(0.4)
            told = waiting.done()
            migration.finish()
            await releasing.join(10.0)
            got = await waiting.result()
            assert got is not None
            assert await lock(third).acquire(timeout=0) is None, f"told during the migration: {told}"
            await got.release()

    harness.run(body)


@both
@pytest.mark.parametrize("when", ["moved", "moving"])
def test_a_waiter_is_woken_after_its_name_has_moved(
    cluster: RedisCluster, harness: Harness, namespace: str, when: str
) -> None:
    """Its channel is on the old node: a message over the cluster's own connections makes it retry."""

    async def body(harness: Harness) -> None:
        async with (
            harness.client(cluster.url, namespace=namespace) as first,
            harness.client(cluster.url, namespace=namespace) as second,
        ):
            hold = await first.lock("z", lease=30.0).acquire()
            job = harness.spawn(lambda: second.lock("z", lease=30.0).acquire(timeout=20))
            info = await first.inspect("z")
            while not info.waiters:
                await harness.sleep(0.01)
                info = await first.inspect("z")
            await harness.sleep(0.3)  # it listens by now
            migration = moving(cluster, namespace, "z")
            migration.move()
            if when == "moved":
                migration.finish()
            await hold.release()
            if when == "moving":
                await harness.sleep(0.3)
                migration.finish()
            began = harness.now()
            got = await job.result()
            assert got is not None
            assert got.token > hold.token
            assert harness.now() - began < 3.0  # far less than a third of the lease, after which it would have looked
            await got.release()

    harness.run(body)


@both
def test_a_waiter_resubscribes_after_its_channel_has_moved(
    cluster: RedisCluster, harness: Harness, namespace: str
) -> None:
    """The slot of the channel itself migrates during a wait: the waiter subscribes anew, and receives messages."""

    async def body(harness: Harness) -> None:
        async with (
            harness.client(cluster.url, namespace=namespace) as first,
            harness.client(cluster.url, namespace=namespace) as second,
        ):
            hold = await first.lock("c", lease=30.0).acquire()
            job = harness.spawn(lambda: second.lock("c", lease=30.0).acquire(timeout=20))
            source = cluster.primary_of(lock_key(namespace, "c"))
            channels: Any = []
            while not channels:
                await harness.sleep(0.02)
                channels = source.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*")
            (channel,) = channels
            target = next(node for node in cluster.primaries if node is not source)
            cluster.migrate(channel, target).finish()
            again: Any = []
            began = harness.now()
            while not again or again == channels:
                assert harness.now() - began < 5.0
                await harness.sleep(0.02)
                again = source.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*")
            await hold.release()
            began = harness.now()
            got = await job.result()
            assert got is not None
            assert harness.now() - began < NOISE
            await got.release()

    harness.run(body)


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

"""Slots that migrate: holds go on, and waiters are woken at the other node."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from cluster_names import lock_key, moving

from leasehold import StoreUnavailable
from leasehold._model import Change, ReleaseReason
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisCluster
from support.flavors import both
from support.patience import until

LEASE = 1.2
NOISE = 1.0


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


@both
@pytest.mark.parametrize("kind", ["mutex", "shared"])
def test_a_name_is_shown_while_its_slot_migrates(
    cluster: RedisCluster, harness: Harness, namespace: str, kind: str
) -> None:
    """Some of its keys are on each node, and some nowhere. Names of other slots are listed, too."""

    def shown(found: Any) -> Any:
        of_holders = [(entry.ticket.id, entry.token) for entry in found.holders]
        return found.name, found.kind, found.token, of_holders, [entry.ticket.id for entry in found.waiters]

    def lock(locks: Any) -> Any:
        return locks.lock("z", lease=60.0) if kind == "mutex" else locks.semaphore("z", 1, lease=60.0)

    async def body(harness: Harness) -> None:
        async with (
            harness.client(cluster.url, namespace=namespace) as locks,
            harness.client(cluster.url, namespace=namespace) as second,
        ):
            other, hold = await locks.lock("other").acquire(), await lock(locks).acquire()
            alone = [shown(each) for each in await locks.store.inspect("")]
            assert [each[0] for each in alone] == ["other", "z"]

            async def check(expected: list[Any]) -> None:
                assert [shown(each) for each in await locks.store.inspect("")] == expected
                assert [shown(each) for each in await locks.store.inspect("z", exact=True)] == expected[1:]
                assert await lock(locks).locked()
                assert not await locks.lock("free").locked()

            migration = moving(cluster, namespace, "z")
            await check(alone)
            migration.move()
            await check(alone)
            migration.finish()
            await check(alone)
            waiting = harness.spawn(lambda: lock(second).acquire(timeout=20))
            while not (await locks.inspect("z")).waiters:
                await harness.sleep(0.01)
            both_shown = [shown(each) for each in await locks.store.inspect("")]
            migration = moving(cluster, namespace, "z")
            await check(both_shown)
            migration.move()
            await check(both_shown)
            migration.finish()
            await check(both_shown)
            await hold.release()
            await (await waiting.result()).release()
            migration = moving(cluster, namespace, "free")
            began = harness.now()
            assert not await locks.lock("free").locked()
            assert harness.now() - began < NOISE
            migration.finish()
            await other.release()

    harness.run(body)


@both
def test_a_lock_delay_is_shown_while_its_slot_migrates(cluster: RedisCluster, harness: Harness, namespace: str) -> None:
    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            await locks.lock("z", lease=60.0, lock_delay=60.0).acquire()
            (found,) = await locks.store.inspect("z", exact=True)
            await locks.store.release("z", found.holders[0].ticket, reason=ReleaseReason.BREAK, within=5.0)
            migration = moving(cluster, namespace, "z")
            for step in (migration.move, migration.finish, lambda: None):
                (found,) = await locks.store.inspect("")
                assert 0 < found.free_in <= 60
                step()

    harness.run(body)


@both
def test_a_look_at_a_name_that_has_moved_learns_its_node(
    cluster: RedisCluster, harness: Harness, namespace: str
) -> None:
    """A client that only looks, as an observer of an election, is redirected once."""

    async def body(harness: Harness) -> None:
        async with (
            harness.client(cluster.url, namespace=namespace) as locks,
            harness.client(cluster.url, namespace=namespace) as second,
        ):
            hold = await locks.lock("z", lease=60.0).acquire()
            assert await second.lock("z").locked()
            source = cluster.primary_of(lock_key(namespace, "z"))
            moving(cluster, namespace, "z").finish()
            before = redirections(source)
            for _ in range(5):
                assert await second.lock("z").locked()
            assert redirections(source) == before + 1
            await hold.release()

    harness.run(body)


def redirections(node: Any) -> int:
    """Return how many commands a node has answered with MOVED."""
    found = [line for line in str(node.command("INFO", "errorstats")).split() if "MOVED" in line]
    return int(found[0].rpartition("=")[2]) if found else 0


WAITER = """
import sys
from leasehold import Client
with Client.from_url(sys.argv[1], namespace=sys.argv[2]) as locks: locks.lock("k", lease=60.0).acquire()
"""


def kill_a_waiter(cluster: RedisCluster, namespace: str) -> None:
    """Leave the queue entry of a waiter for ``k`` that cannot be notified."""
    source = cluster.primary_of(lock_key(namespace, "k"))
    process = subprocess.Popen([sys.executable, "-c", WAITER, cluster.url, namespace])
    until(lambda: source.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*"), 20.0)
    process.kill()
    process.wait()
    until(lambda: not source.command("PUBSUB", "SHARDCHANNELS", f"*{namespace}*"))


@both
def test_a_release_past_a_dead_waiter_counts_while_the_slot_migrates(
    cluster: RedisCluster, harness: Harness, namespace: str
) -> None:
    """It is passed over, and keeps its entry for a second. So no key becomes empty, which would stop the script."""

    async def body(harness: Harness) -> None:
        async with harness.client(cluster.url, namespace=namespace) as locks:
            hold = await locks.lock("k", lease=60.0).acquire()
            kill_a_waiter(cluster, namespace)
            migration = moving(cluster, namespace, "k")
            assert migration.source.command("CLUSTER", "COUNTKEYSINSLOT", migration.slot) == 4
            releasing = harness.spawn(hold.release)
            await harness.sleep(0.3)
            migration.finish()
            assert await releasing.result() is True

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

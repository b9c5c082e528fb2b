"""All kinds of lock of Redisson on a cluster: keys and channels of one slot, and who is woken, also if the slot moves.

Real Java programs take part in ``tests/foreign``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from layout_keys import url_of
from redisson_on_cluster import SHAPES, Java, followed

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.layouts.redis import redisson
from leasehold.layouts.redis.cluster import NodeLayoutStore
from leasehold.layouts.redis.layout import slot_tag
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.keys import crc_hqx
from leasehold_lab.servers import RedisCluster
from support.flavors import both
from support.patience import until_in

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine."""

LONG = 60.0
"""Seconds of a lease whose end, and whose renewals, come after the test."""

shapes = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture(scope="module")
def cluster(outlive: set[int]) -> Iterator[RedisCluster]:
    with RedisCluster(replicas=0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


def reader(client, name, **options):
    return client.rw_lock(name, fair=False, **options).reader()


def scripts(node):
    stats = node.commandstats()
    return stats.get("eval", 0) + stats.get("evalsha", 0)


def other_than(cluster, node):
    return next(primary for primary in cluster.primaries if primary is not node)


# --- keys and channels -----------------------------------------------------------------------------------------------

MODES = [
    LockMode(),
    LockMode(fair=True),
    LockMode(Kind.READ_WRITE, exclusive=False),
    LockMode(Kind.READ_WRITE),
    LockMode(Kind.SEMAPHORE, permits=2, limit=3),
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", ["stock:42", "a{b}c", "{b}", "größe 7"])
def test_all_keys_and_channels_of_a_lock_are_in_one_slot(mode, name):
    layout = redisson.layout().on_cluster()
    ticket = Ticket(ticket_id(b"t" * 16), LeaseTerms(mode, Owner("h", 1, "c"), 1.0))
    lock = layout.lock_key("default", name)
    some = [*layout.keys_of("default", name, ticket), *layout.keys_of("default", name, ticket, renews=True)]
    some += [*layout.keys_inside(lock, mode.kind), layout.topic(lock, ticket)]
    assert {crc_hqx(slot_tag(key), 0) % 16384 for key in some} == {crc_hqx(slot_tag(lock), 0) % 16384}


def test_a_waiter_that_is_dropped_and_claims_again_at_once_follows_its_channel(namespace):
    """In blocking code another thread drops it."""
    layout = redisson.layout().on_cluster()
    ticket = Ticket(ticket_id(b"t" * 16), LeaseTerms(LockMode(), Owner("h", 1, "c"), 1.0))
    topic = layout.topic(layout.lock_key(namespace, "x"), ticket)
    store = NodeLayoutStore(BlockingRuntime(), Settings("here"), namespace, layout=layout)

    def waits(*_):
        store._waiters.add("x", ticket)
        store._topics.follow(topic, ticket.id)

    waits()
    store._waiters.wake = waits
    store.drop(ticket)
    assert store._topics.followers(topic) == [ticket.id]


# --- messages --------------------------------------------------------------------------------------------------------


@both
@shapes
def test_a_release_of_java_wakes_a_waiter_that_has_sent_nothing(cluster, namespace, harness, shape):
    key = f"{namespace}:x"
    java, node = Java(cluster, key, shape), cluster.primary_of(key)

    async def body(harness):
        async with harness.client(url_of(cluster.url, "redisson"), namespace=namespace) as locks:
            for _ in range(3):
                java.holds()
                waiter = harness.spawn(lambda: SHAPES[shape](locks, "x", lease=LONG).acquire(timeout=30))
                await until_in(harness, lambda: followed(node, key))
                await harness.sleep(0.3)  # it claims again when it is subscribed
                node.reset_stats()
                await harness.sleep(1.0)
                assert scripts(node) == 0, "nothing polls"
                start = harness.now()
                java.releases()
                hold = await waiter.result()
                assert harness.now() - start < NOTIFIED
                await hold.release()
                await until_in(harness, lambda: not followed(node, key))

    harness.run(body)


@both
@shapes
def test_a_subscription_that_is_lost_is_made_again(cluster, namespace, harness, shape):
    key = f"{namespace}:x"
    java, node = Java(cluster, key, shape), cluster.primary_of(key)

    async def body(harness):
        async with harness.client(url_of(cluster.url, "redisson"), namespace=namespace) as locks:
            java.holds()
            waiter = harness.spawn(lambda: SHAPES[shape](locks, "x", lease=LONG).acquire(timeout=30))
            await until_in(harness, lambda: followed(node, key))
            assert node.command("CLIENT", "KILL", "TYPE", "pubsub") == 1
            await until_in(harness, lambda: followed(node, key))
            start = harness.now()
            java.releases()
            await (await waiter.result()).release()
            assert harness.now() - start < NOTIFIED

    harness.run(body)


@both
def test_who_holds_and_who_waits_is_shown_for_all_kinds(cluster, namespace, harness):
    async def body(harness):
        url = url_of(cluster.url, "redisson")
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            for shape, make in [*SHAPES.items(), ("redisson-read", reader)]:
                hold = await make(locks, shape).acquire()
                waiting = SHAPES["redisson-write"] if shape == "redisson-read" else make
                waiter = harness.spawn(lambda shape=shape, waiting=waiting: waiting(other, shape).acquire(timeout=20))
                await until_in(harness, partial(waits, locks, shape))
                (found,) = [info for info in await locks.holds() if info.name == shape]
                assert [holder.token for holder in found.holders] == [hold.token]
                start = harness.now()
                await hold.release()
                got = await waiter.result()
                assert harness.now() - start < NOTIFIED
                assert got.token > hold.token
                await got.release()
            assert await locks.holds() == []

    harness.run(body)


async def waits(locks, name):
    return len((await locks.inspect(name)).waiters) == 1


# --- a slot that migrates --------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("shape", [*SHAPES, "redisson-read"])
def test_a_hold_is_renewed_and_released_while_its_slot_migrates(cluster, namespace, harness, shape):
    make = SHAPES.get(shape, reader)
    key = f"{namespace}:x"

    async def body(harness):
        async with harness.client(url_of(cluster.url, "redisson"), namespace=namespace) as locks:
            hold = await make(locks, "x", lease=2.5).acquire()
            migration = cluster.migrate(key, other_than(cluster, cluster.primary_of(key)))
            await harness.sleep(1.8)
            migration.move()
            await harness.sleep(1.8)
            hold.raise_if_lost()
            releasing = harness.spawn(hold.release)
            await harness.sleep(0.5)
            migration.finish()
            await releasing.result()  # unconfirmed if that took more than a second
            again = await make(locks, "x").acquire(timeout=5)
            assert again.token > hold.token
            await again.release()

    harness.run(body)


@both
@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_a_release_before_the_keys_have_left_wakes_the_next_in_the_fair_queue(cluster, namespace, harness, end):
    """The lock's key, once deleted, counts as one that has left the node. A migration may be called off."""
    key = f"{namespace}:x"
    fair = SHAPES["redisson-fair"]

    async def body(harness):
        url = url_of(cluster.url, "redisson")
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            hold = await fair(locks, "x", lease=LONG).acquire()
            waiter = harness.spawn(lambda: fair(other, "x", lease=LONG).acquire(timeout=30))
            source = cluster.primary_of(key)
            await until_in(harness, lambda: followed(source, key))
            await harness.sleep(0.3)
            migration = cluster.migrate(key, other_than(cluster, source))
            assert await hold.release(), "confirmed"
            await harness.sleep(0.3)
            getattr(migration, end)()
            start = harness.now()
            await (await waiter.result()).release()
            assert harness.now() - start < 2.0

    harness.run(body)


@both
def test_a_reader_whose_key_has_left_alone_is_released_as_a_whole(cluster, namespace, harness):
    """The keys of other readers are read by the release, and are not in its KEYS."""
    key = f"{namespace}:x"

    async def body(harness):
        url = url_of(cluster.url, "redisson")
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            first, second = [await reader(client, "x", lease=LONG).acquire() for client in (locks, other)]
            waiter = harness.spawn(lambda: SHAPES["redisson-write"](locks, "x", lease=LONG).acquire(timeout=30))
            await until_in(harness, partial(waits, locks, "x"))
            source = cluster.primary_of(key)
            migration = cluster.migrate(key, other_than(cluster, source))
            holds = source.command("KEYS", f"{{{key}}}:*:rwlock_timeout:1")
            assert len(holds) == 2
            migration.move(*holds)
            releasing = [harness.spawn(hold.release) for hold in (first, second)]
            await harness.sleep(0.5)
            assert source.command("HLEN", key) == 3, "mode and both readers"
            migration.finish()
            for each in releasing:
                await each.result()  # unconfirmed if that took more than a second
            start = harness.now()
            await (await waiter.result()).release()
            assert harness.now() - start < 5.0

    harness.run(body)


@both
@shapes
def test_a_waiter_follows_a_slot_that_has_moved(cluster, namespace, harness, shape):
    key = f"{namespace}:x"
    java = Java(cluster, key, shape)

    async def body(harness):
        async with harness.client(url_of(cluster.url, "redisson"), namespace=namespace) as locks:
            java.holds()
            waiters = [
                harness.spawn(lambda: SHAPES[shape](locks, "x", lease=LONG).acquire(timeout=30)) for _ in range(2)
            ]
            await until_in(harness, lambda: followed(cluster.primary_of(key), key))
            await harness.sleep(0.3)
            source = cluster.primary_of(key)
            target = other_than(cluster, source)
            cluster.migrate(key, target).finish()
            await until_in(harness, lambda: followed(target, key), 1.0)
            assert not followed(source, key)
            await harness.sleep(0.3)
            start = harness.now()
            java.releases()
            for _ in waiters:
                done = [waiter for waiter in waiters if waiter.done()]
                while not done:
                    await harness.sleep(0.005)
                    done = [waiter for waiter in waiters if waiter.done()]
                waiters = [waiter for waiter in waiters if waiter not in done]
                for waiter in done:
                    await (await waiter.result()).release()
            assert harness.now() - start < 2 * NOTIFIED

    harness.run(body)


@both
def test_a_waiter_leaves_a_node_that_hangs_when_its_slot_has_another(cluster, namespace, harness):
    """The node keeps other slots, and does not reply: the watchdog alone can see it."""
    key = f"{namespace}:x"
    java = Java(cluster, key, "redisson-lock")

    async def body(harness):
        async with harness.client(url_of(cluster.url, "redisson"), namespace=namespace) as locks:
            java.holds()
            waiter = harness.spawn(lambda: locks.lock("x", lease=3.0).acquire(timeout=30))
            source = cluster.primary_of(key)
            target = other_than(cluster, source)
            await until_in(harness, lambda: followed(source, key))
            slot, name = target.command("CLUSTER", "KEYSLOT", key), cluster.id_of(target)
            target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
            source.pause()
            try:
                for node in (target, *(one for one in cluster.nodes if one not in (source, target))):
                    node.command("CLUSTER", "SETSLOT", slot, "NODE", name)
                start = harness.now()
                hold = await waiter.result()
                assert harness.now() - start < 9.0
            finally:
                source.resume()
            await hold.release()
            await until_in(harness, lambda: cluster.primary_of(key) is target)
            cluster.wait_healthy()

    harness.run(body)


@both
def test_a_waiter_follows_its_channel_at_the_node_that_imports_the_slot(cluster, namespace, harness):
    """That has the keys of a fair lock, all of them, before it has the slot; the watchdog is redirected there."""
    key = f"{namespace}:x"
    fair = SHAPES["redisson-fair"]

    async def body(harness):
        url = url_of(cluster.url, "redisson")
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            hold = await fair(locks, "x", lease=1.5).acquire()
            waiter = harness.spawn(lambda: fair(other, "x", lease=1.5).acquire(timeout=30))
            source = cluster.primary_of(key)
            await until_in(harness, lambda: followed(source, key))
            target = other_than(cluster, source)
            migration = cluster.migrate(key, target)
            migration.move()
            await until_in(harness, lambda: followed(target, key), 2.0)
            await harness.sleep(0.3)
            target.reset_stats()
            await harness.sleep(1.0)
            assert scripts(target) <= 6, "renewals of both"
            migration.finish()
            start = harness.now()
            await hold.release()
            await (await waiter.result()).release()
            assert harness.now() - start < NOTIFIED

    harness.run(body)

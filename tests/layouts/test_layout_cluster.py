"""The layouts that a cluster can have: keys of one slot, a migrating slot, a failover, and what is refused there."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from layout_keys import url_of
from layout_rights import rules

from leasehold import Client, StoreRefused, Unsupported
from leasehold.layouts.redis.layout import slot_tag
from leasehold.stores.redis import keys
from leasehold.stores.redis.doctor import foreign
from leasehold_lab.servers import RedisCluster
from support.flavors import both
from support.patience import until_in

LAYOUTS = ("plain", "redisson")

NAMES = ("stock:42", "größe 7", "a{b}c", "{b}", "100%", "x*y")
"""Some are encoded in our own keys, some have braces."""

layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def cluster(outlive: set[int]) -> Iterator[RedisCluster]:
    with RedisCluster(replicas=0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


def moving(cluster, key):
    """Begin the migration of a key to the next node."""
    source = cluster.primary_of(key)
    return cluster.migrate(key, next(node for node in cluster.primaries if node is not source))


@pytest.mark.parametrize("key", [b"a", b"a{b}c", b"{b}", b"a{}b", b"a{b", b"a}b{c}d{e}", b"{{a}}"])
def test_the_slot_is_that_of_the_server(cluster, key):
    slot = cluster.primaries[0].command("CLUSTER", "KEYSLOT", key)
    assert keys.crc_hqx(slot_tag(key), 0) % keys.SLOTS == slot


@both
@layouts
def test_names_of_all_nodes_are_held_renewed_listed_and_waited_for(cluster, namespace, harness, layout):
    names = [*NAMES, *(f"n{number}" for number in range(9))]

    async def body(harness):
        url = url_of(cluster.url, layout)
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            holds = {name: await locks.lock(name, lease=1.2).acquire() for name in names}
            slots = {cluster.primary_of(f"{namespace}:{name}").port for name in names}
            assert len(slots) == 3
            await harness.sleep(1.8)
            assert not any(hold.lost for hold in holds.values())
            assert [info.name for info in await locks.holds()] == sorted(names)
            assert [info.name for info in await locks.holds("n")] == sorted(name for name in names if name[0] == "n")
            for name, hold in holds.items():
                assert await other.lock(name).acquire(timeout=0) is None
                waiter = harness.spawn(lambda name=name: other.lock(name).acquire(timeout=20))
                await harness.sleep(0.2)
                assert len((await locks.inspect(name)).waiters) == 1
                start = harness.now()
                await hold.release()
                got = await waiter.result()
                assert harness.now() - start < 0.5
                assert got.token > hold.token
                await got.release()
            assert await locks.holds() == []

    harness.run(body)


@both
@layouts
def test_a_release_wakes_the_next_by_a_message(cluster, namespace, harness, layout):
    async def body(harness):
        url = url_of(cluster.url, layout)
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            object.__setattr__(other.store.layout, "poll", 30.0)
            for _ in range(5):
                hold = await locks.lock("x").acquire()
                waiter = harness.spawn(lambda: other.lock("x").acquire(timeout=20))
                await harness.sleep(0.3)
                start = harness.now()
                await hold.release()
                await (await waiter.result()).release()
                assert harness.now() - start < 0.5

    harness.run(body)


@both
@layouts
def test_a_lock_is_renewed_and_waited_for_while_its_slot_migrates(cluster, namespace, harness, layout):
    key = f"{namespace}:x"

    async def body(harness):
        url = url_of(cluster.url, layout)
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            hold = await locks.lock("x", lease=1.2).acquire()
            waiter = harness.spawn(lambda: other.lock("x", lease=20).acquire(timeout=30))
            await harness.sleep(0.3)
            migration = moving(cluster, key)
            await harness.sleep(1.5)
            migration.move()
            await harness.sleep(1.5)
            migration.finish()
            await harness.sleep(1.5)
            assert not hold.lost
            assert await locks.lock("x").acquire(timeout=0) is None
            start = harness.now()
            await hold.release()
            got = await waiter.result()
            assert got is not None
            assert harness.now() - start < 2.0
            assert got.token > hold.token
            await got.release()

    harness.run(body)


@both
@layouts
def test_after_a_failover_locks_are_acquired_at_the_new_primary(namespace, harness, layout):
    with RedisCluster(node_timeout=1.0) as group:

        async def body(harness):
            async with harness.client(url_of(group.url, layout), namespace=namespace) as locks:
                hold = await locks.lock("x", lease=2.0).acquire()
                await hold.release()
                dead = group.primary_of(f"{namespace}:x")
                dead.kill()
                again = await locks.lock("x", lease=2.0).acquire(timeout=30)
                assert group.primary_of(f"{namespace}:x") is not dead
                assert again.token > hold.token
                await harness.sleep(3.0)
                assert not again.lost
                assert await locks.lock("x").acquire(timeout=0) is None
                await again.release()

        harness.run(body)


@pytest.fixture
def user(cluster, namespace):
    """A user of all nodes, and what sets its rights."""
    name = f"user-{namespace}"

    def grant(*rights):
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", name, "on", ">secret", *rights)

    yield cluster.url.replace("://", f"://{name}:secret@"), grant
    for node in cluster.nodes:
        node.command("ACL", "DELUSER", name)


@both
@layouts
def test_the_listed_rights_are_enough(cluster, namespace, harness, layout, user):
    url, grant = user
    grant("resetkeys", *rules(layout, namespace))

    async def body(harness):
        async with (
            harness.client(url_of(url, layout), namespace=namespace) as locks,
            harness.client(url_of(url, layout), namespace=namespace) as other,
        ):
            for name in ("a", "b", "c", "d"):
                hold = await locks.lock(name, lease=0.6).acquire()
                waiter = harness.spawn(lambda name=name: other.lock(name, lease=0.6).acquire(timeout=10))
                await harness.sleep(0.4)
                assert [info.name for info in await locks.holds()] == [name]
                await hold.release()
                await (await waiter.result()).release()

    harness.run(body)


@both
@pytest.mark.parametrize(("layout", "lacking"), [("plain", "&leasehold:"), ("redisson", "&redisson_lock__channel:")])
def test_a_denied_channel_is_named_before_the_first_claim(cluster, namespace, harness, user, layout, lacking):
    url, grant = user
    kept = [rule for rule in rules(layout, namespace) if not rule.startswith(lacking[:10])]
    grant("resetkeys", "resetchannels", *kept)

    async def body(harness):
        async with harness.client(url_of(url, layout), namespace=namespace) as locks:
            with pytest.raises(StoreRefused, match=rf"lacks the right {lacking}.*docs/interop.md"):
                await locks.lock("x").acquire(timeout=5)
            assert not any(node.command("KEYS", f"*{namespace}:x*") for node in cluster.primaries)
            grant("allchannels")
            await (await locks.lock("x").acquire(timeout=5)).release()

    harness.run(body)


@both
@layouts
def test_doctor_names_the_layout_once(cluster, namespace, harness, layout):
    async def body(harness):
        async with harness.client(url_of(cluster.url, layout), namespace=namespace) as locks:
            found = await locks.store.diagnose()
            assert [one.subject for one in found].count("layout") == 1
            assert not any(one.subject.endswith(foreign.SUBJECT) for one in found)

    harness.run(body)


@both
def test_a_release_publishes_in_the_shard_as_redisson_waits_for_it(cluster, namespace, harness):
    key = f"{namespace}:x"
    channel = f"redisson_lock__channel:{{{key}}}"

    async def body(harness):
        node = cluster.primary_of(key)
        async with harness.client(url_of(cluster.url, "redisson"), namespace=namespace) as locks:
            with redis.Redis(port=node.port) as client, client.pubsub() as listener:
                listener.ssubscribe(channel)
                await until_in(harness, lambda: listener.get_message(timeout=1) is not None)
                async with locks.lock("x"):
                    assert client.hvals(key) == [b"1"]
                end = time.monotonic() + 2
                message = None
                while message is None and time.monotonic() < end:
                    message = listener.get_sharded_message(timeout=0.1)
                assert message["data"] == b"0"

    harness.run(body)


@both
@layouts
def test_a_name_whose_braces_are_not_in_pairs_is_refused(cluster, namespace, harness, layout):
    async def body(harness):
        async with harness.client(url_of(cluster.url, layout), namespace=namespace) as locks:
            for name in ("a{b", "a}b", "a{}b"):
                with pytest.raises(Unsupported, match="cannot be a lock on a cluster: its braces are not in pairs"):
                    await locks.lock(name).acquire(timeout=1)

    harness.run(body)


def test_what_a_cluster_cannot_have_is_refused_when_it_is_made():
    with Client.from_url("redis+cluster://a:1?layout=plain") as locks:
        for make in (
            lambda: locks.lock("x", fair=True),
            lambda: locks.rw_lock("x", fair=False),
            lambda: locks.semaphore("x", 3, fair=False),
        ):
            with pytest.raises(Unsupported, match="layout=plain"):
                make()
    with pytest.raises(Unsupported, match=r"layout=spring works on one Redis server .*, not on a cluster"):
        Client.from_url("redis+cluster://a:1?layout=spring&registry=r")

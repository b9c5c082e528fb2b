"""Redisson's read-write lock on a real server, against the steps that Redisson was recorded to send.

Real Java programs take part in ``tests/foreign``.
"""

from __future__ import annotations

import re

import pytest
import redis
from layout_keys import assert_clean, url_of
from rw_by_hand import OWNER, Java

from leasehold import LeaseLost, NameInUse, Unsupported
from leasehold.layouts.redis.inspecting import FOREIGN
from support.flavors import both
from support.patience import until_in

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine."""


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, "redisson")


@pytest.fixture
def key(namespace):
    """The key of the lock ``x``."""
    return f"{namespace}:x"


@pytest.fixture
def java(redis_server, key):
    with redis.Redis.from_url(redis_server.url) as client:
        yield Java(client, key)


def rw(locks, **options):
    return locks.rw_lock("x", fair=False, **options)


@both
def test_the_keys_are_those_of_redisson(redis_server, java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await rw(locks, lease=20).reader().acquire()
            fields = java.redis.hgetall(key)
            (owner,) = fields.keys() - {b"mode"}
            assert fields == {b"mode": b"read", owner: b"1"}
            assert re.fullmatch(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+", owner)
            timeout = java.hold_key(owner.decode()) + ":1"
            assert java.redis.get(timeout) == b"1"
            assert all(19_000 < java.redis.pttl(each) <= 20_000 for each in (key, timeout))
            await hold.release()
            assert not java.redis.exists(key, timeout)
            hold = await rw(locks, lease=20).writer().acquire()
            fields = java.redis.hgetall(key)
            (owner,) = fields.keys() - {b"mode"}
            assert fields == {b"mode": b"write", owner: b"1"}
            assert re.fullmatch(rb"[0-9a-f-]{36}:\d+:write", owner)
            assert 19_000 < java.redis.pttl(key) <= 20_000
            await hold.release()
            assert not java.redis.exists(key)
        assert_clean(redis_server, "redisson", namespace)

    harness.run(body)


@both
def test_readers_of_both_sides_share_and_a_writer_is_alone(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            first, second = await rw(locks).reader().acquire(), await rw(locks, timeout=0).reader().acquire()
            assert java.read()
            assert not Java(java.redis, java.key, f"{OWNER}8").write()
            assert await rw(locks).writer().locked()
            for leaves in (first.release, second.release):
                await leaves()
                assert not Java(java.redis, java.key, f"{OWNER}8").write()
            assert java.read_unlock() == 1
            assert java.write()
            for side in (rw(locks).reader(), rw(locks).writer()):
                assert await side.acquire(blocking=False) is None
            assert java.write_unlock() == 1
            async with rw(locks, timeout=0).writer():
                assert not java.read()
                assert not java.write()
            assert java.read()
            assert java.read_unlock() == 1

    harness.run(body)


@both
def test_waiters_are_notified_of_the_release_of_either_side(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for takes, leaves in ((java.read, java.read_unlock), (java.write, java.write_unlock)):
                assert takes()
                waiter = harness.spawn(lambda: rw(locks).writer().acquire(timeout=20))
                await harness.sleep(0.4)
                start = harness.now()
                assert leaves() == 1
                hold = await waiter.result()
                assert harness.now() - start < NOTIFIED
                with java.redis.pubsub() as listener:
                    listener.subscribe(java.channel)
                    assert listener.get_message(timeout=1)["type"] == "subscribe"
                    await hold.release()
                    assert listener.get_message(timeout=1)["data"] == b"1"

    harness.run(body)


@both
def test_all_readers_that_wait_enter_after_the_writer(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.write(lease=60)
            waiters = [harness.spawn(lambda: rw(locks).reader().acquire(timeout=20)) for _ in range(5)]
            await harness.sleep(0.5)
            assert java.write_unlock() == 1
            start = harness.now()
            holds = [await waiter.result() for waiter in waiters]
            assert harness.now() - start < 2 * NOTIFIED
            assert len({hold.token for hold in holds}) == 5
            for hold in holds:
                await hold.release()

    harness.run(body)


@both
def test_a_reader_that_leaves_sets_the_life_to_the_longest_of_the_others(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await rw(locks, lease=60, renew=False).reader().acquire()
            assert java.read(lease=5)
            assert java.redis.pttl(key) > 50_000
            await hold.release()
            assert 4_000 < java.redis.pttl(key) <= 5_000
            other = await rw(locks, lease=20, renew=False).reader().acquire()
            assert java.read_unlock() == 0
            assert 19_000 < java.redis.pttl(key) <= 20_000, "Redisson finds the life of ours"
            await other.release()
            assert not java.redis.exists(key)

    harness.run(body)


@both
def test_a_writer_that_reads_goes_on_reading_and_lets_other_readers_in(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            lock = rw(locks)
            writing = await lock.writer().acquire()
            reading = await lock.reader().acquire(timeout=1)
            assert reading.token > writing.token
            assert not java.read()
            waiter = harness.spawn(lambda: rw(other).reader().acquire(timeout=20))
            await harness.sleep(0.4)
            start = harness.now()
            await writing.release()
            hold = await waiter.result()
            assert harness.now() - start < NOTIFIED
            assert java.read()
            await reading.release()
            await hold.release()
            assert java.read_unlock() == 1

    harness.run(body)


@both
def test_a_reader_whose_lease_has_ended_is_lost_while_others_read(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.read()
            hold = await rw(locks, lease=0.6).reader().acquire()
            for timeout in java.redis.keys(f"{{{key}}}:*:rwlock_timeout:1"):
                if OWNER.encode() not in timeout:
                    java.redis.delete(timeout)
            await until_in(harness, lambda: hold.lost)
            with pytest.raises(LeaseLost):
                await hold.release()
            assert java.read_unlock() == 1

    harness.run(body)


@both
def test_a_writer_frees_the_lock_beside_readers_whose_leases_have_ended(java, url, key, namespace, harness):
    """Redisson leaves the field of a dead reader in the hash as long as that lives."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await rw(locks).writer().acquire()
            java.redis.hset(key, OWNER, 1)
            with java.redis.pubsub() as listener:
                listener.subscribe(java.channel)
                assert listener.get_message(timeout=1)["type"] == "subscribe"
                await hold.release()
                assert listener.get_message(timeout=1)["data"] == b"1"
            assert not java.redis.exists(key)
            assert java.write()
            assert java.write_unlock() == 1

    harness.run(body)


@both
def test_watchdogs_keep_both_sides(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for side in ("reader", "writer"):
                hold = await getattr(rw(locks, lease=0.6), side)().acquire()
                await harness.sleep(1.6)
                hold.raise_if_lost()
                assert not Java(java.redis, key, f"{OWNER}8").write()
                await hold.release()

    harness.run(body)


@both
def test_another_kind_is_refused_and_left_alone(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            async with locks.lock("x"):
                with pytest.raises(NameInUse, match="is a lock of another program"):
                    await rw(locks).reader().acquire(timeout=1)
            async with rw(locks).reader():
                with pytest.raises(NameInUse, match="is a read-write lock of another program"):
                    await locks.lock("x").acquire(timeout=1)
            java.redis.set(key, "7")
            with pytest.raises(NameInUse, match="is a string of another program"):
                await rw(locks).writer().acquire(timeout=1)

    harness.run(body)


@both
def test_holders_of_both_sides_are_shown(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.read(lease=7)
            async with rw(locks, lease=20, meta="mine").reader() as hold:
                found = await locks.inspect("x")
                assert found.kind == "rw"
                by_token = {holder.token: holder for holder in found.holders}
                assert by_token[hold.token].meta == "mine"
                assert 19 < by_token[hold.token].remaining <= 20
                assert (by_token[None].host, 6 < by_token[None].remaining <= 7) == (FOREIGN, True)
                assert await locks.force_release("x", hold.token)
            assert java.read_unlock() == 1

    with pytest.raises(LeaseLost):
        harness.run(body)


@both
def test_waiters_are_shown_as_what_they_wait_for(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.write(lease=60)

            async def visit(side):
                async with side:
                    await harness.sleep(0.01)

            waiters = [harness.spawn(lambda s=s: visit(s)) for s in (rw(locks).reader(), rw(locks).writer())]
            await until_in(harness, lambda: java.redis.pubsub_numsub(java.channel)[0][1] == 1)
            await harness.sleep(0.3)
            for _ in range(2):
                found = await locks.inspect("x")
                assert (found.kind, len(found.waiters)) == ("rw", 2)
                java.redis.delete(key)  # its lease ends, and nobody has noticed yet
            java.redis.publish(java.channel, "1")
            for waiter in waiters:
                await waiter.result()

    harness.run(body)


def test_what_the_format_cannot_carry_is_refused_when_the_lock_is_made():
    from leasehold import Client

    with Client.from_url("redis://localhost?layout=redisson") as locks:
        with pytest.raises(Unsupported, match=r"fair order of readers, writers and permits .*; .* Redisson"):
            locks.rw_lock("x")
        with pytest.raises(Unsupported, match=r"no reader that may become the writer; .* Redisson"):
            locks.rw_lock("x", fair=False).upgradeable()

"""Redisson's format on a real server, against the steps that Redisson itself was recorded to send.

Real Java programs take part in ``tests/foreign``. Here a few lines imitate one, so that these tests need no Java.
"""

from __future__ import annotations

import re
import time

import pytest
import redis
from layout_keys import assert_clean, url_of

from leasehold import LeaseLost, NameInUse
from leasehold.layouts.redis.inspecting import FOREIGN
from leasehold_lab.proxy.proxy import FaultProxy
from support.flavors import both
from support.patience import until_in

SOON = 2.0

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine: far less than any lease here, and than any poll."""

ACQUIRE = """
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  if KEYS[2] then return {-1, redis.call('incr', KEYS[2])} end
  return nil
end
return redis.call('pttl', KEYS[1])
"""

UNLOCK = """
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then redis.call('pexpire', KEYS[1], ARGV[2]); return 0 end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
"""


class Java:
    """One thread of a Java program, by the recorded scripts of Redisson 4.7."""

    def __init__(self, client: redis.Redis, key: str, owner: str = "6b7b6e8c-7ad5-4e0c-a2ae-18cd1f5b2b60:37") -> None:
        self.redis = client
        self.key = key
        self.owner = owner
        self.channel = f"redisson_lock__channel:{{{key}}}"
        self.token_key = f"redisson_lock_token:{{{key}}}"

    def lock(self, lease: float = 30.0) -> bool:
        return self.redis.eval(ACQUIRE, 1, self.key, round(lease * 1000), self.owner) is None

    def fenced(self, lease: float = 30.0) -> int:
        reply = self.redis.eval(ACQUIRE, 2, self.key, self.token_key, round(lease * 1000), self.owner)
        assert isinstance(reply, list), "another one holds it"
        return int(reply[1])

    def unlock(self) -> int | None:
        return self.redis.eval(UNLOCK, 2, self.key, self.channel, "0", 30_000, self.owner)


@pytest.fixture
def java(redis_server, key):
    with redis.Redis.from_url(redis_server.url) as client:
        yield Java(client, key)


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, "redisson")


@pytest.fixture
def key(namespace):
    """The key of the lock ``x``."""
    return f"{namespace}:x"


@both
def test_the_key_is_a_hash_with_one_owner(redis_server, java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            owners = set()
            for _ in range(2):
                hold = await locks.lock("x", lease=20).acquire()
                ((owner, count),) = java.redis.hgetall(key).items()
                assert re.fullmatch(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+", owner)
                assert count == b"1"
                assert 19_000 < java.redis.pttl(key) <= 20_000
                assert int(java.redis.get(java.token_key)) == hold.token
                owners.add(owner)
                await hold.release()
                assert not java.redis.exists(key)
            assert len(owners) == 2, "each acquisition has an owner of its own"
        assert_clean(redis_server, "redisson", namespace)

    harness.run(body)


@both
def test_a_release_publishes_what_redisson_waits_for(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with java.redis.pubsub() as listener:
                listener.subscribe(java.channel)
                assert listener.get_message(timeout=1)["type"] == "subscribe"
                async with locks.lock("x"):
                    pass
                message = listener.get_message(timeout=1)
                assert (message["type"], message["data"]) == ("message", b"0")
                assert listener.get_message(timeout=0.05) is None

    harness.run(body)


@both
def test_each_side_keeps_the_other_out(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            async with locks.lock("x"):
                assert not java.lock()
                assert java.unlock() is None, "Redisson's unlock frees its own owner only"
            assert java.lock()
            assert await locks.lock("x").acquire(blocking=False) is None
            assert java.unlock() == 1
            async with locks.lock("x", timeout=0):
                pass

    harness.run(body)


@both
def test_a_reentrant_holder_is_respected_to_its_last_unlock(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.lock()
            assert java.lock()
            assert java.unlock() == 0
            assert await locks.lock("x").acquire(timeout=0.2) is None
            assert java.unlock() == 1
            async with locks.lock("x", timeout=0):
                pass

    harness.run(body)


@both
def test_a_waiter_is_woken_by_the_message_and_does_not_poll(redis_server, java, url, namespace, harness):
    async def body(harness):
        with FaultProxy(redis_server.port) as proxy:
            through = url_of(f"redis://127.0.0.1:{proxy.port}", "redisson")
            async with harness.client(through, namespace=namespace) as locks:
                for _ in range(3):
                    assert java.lock(lease=60)
                    waiter = harness.spawn(lambda: locks.lock("x").acquire(timeout=20))
                    await harness.sleep(0.4)
                    before = proxy.count(b"EVALSHA")
                    await harness.sleep(0.6)
                    assert proxy.count(b"EVALSHA") == before, "a waiter sends nothing while it waits"
                    start = harness.now()
                    assert java.unlock() == 1
                    hold = await waiter.result()
                    assert harness.now() - start < NOTIFIED
                    await hold.release()

    harness.run(body)


@both
def test_a_release_before_the_subscription_is_not_missed(redis_server, java, namespace, harness):
    """The reply to the SUBSCRIBE is late; meanwhile the lock is released, and the message is lost."""

    async def body(harness):
        with FaultProxy(redis_server.port) as proxy:
            through = url_of(f"redis://127.0.0.1:{proxy.port}", "redisson")
            async with harness.client(through, namespace=namespace) as locks:
                async with locks.lock("warm"):
                    pass
                assert java.lock(lease=60)
                proxy.delay(0.4, where=b"SUBSCRIBE")
                waiter = harness.spawn(lambda: locks.lock("x").acquire(timeout=20))
                await harness.sleep(0.2)
                assert java.unlock() == 1
                start = harness.now()
                hold = await waiter.result()
                assert harness.now() - start < 0.4 + NOTIFIED
                await hold.release()

    harness.run(body)


@both
def test_waiters_are_unsubscribed_when_the_last_has_left(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.lock(lease=60)

            async def work():
                hold = await locks.lock("x").acquire(timeout=20)
                assert hold is not None
                await hold.release()

            waiters = [harness.spawn(work) for _ in range(3)]
            brief = harness.spawn(lambda: locks.lock("x").acquire(timeout=0.5))
            await until_in(harness, lambda: java.redis.pubsub_numsub(java.channel)[0][1] == 1)
            assert await brief.result() is None
            assert java.redis.pubsub_numsub(java.channel)[0][1] == 1, "one subscription for all waiters of a client"
            assert java.unlock() == 1
            for waiter in waiters:
                await waiter.result()
            await until_in(harness, lambda: java.redis.pubsub_numsub(java.channel)[0][1] == 0)

    harness.run(body)


@both
def test_waiters_of_many_names_share_a_connection(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            names = [f"n{number}" for number in range(20)]
            holders = [Java(java.redis, f"{namespace}:{name}") for name in names]
            assert all(holder.lock() for holder in holders)
            waiters = [harness.spawn(lambda name=name: locks.lock(name).acquire(timeout=20)) for name in names]
            await until_in(
                harness,
                lambda: all(count for _, count in java.redis.pubsub_numsub(*(one.channel for one in holders))),
            )
            for holder, waiter in zip(reversed(holders), reversed(waiters), strict=True):
                start = time.monotonic()
                assert holder.unlock() == 1
                hold = await waiter.result()
                assert time.monotonic() - start < NOTIFIED
                await hold.release()

    harness.run(body)


@both
def test_a_holder_that_publishes_nothing_delays_for_its_lease_only(java, url, key, namespace, harness):
    """A crash, and Redisson's spin lock, publish nothing."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.lock(lease=1.0)
            start = harness.now()
            hold = await locks.lock("x").acquire(timeout=5)
            assert 0.8 < harness.now() - start < 1.0 + 0.25
            await hold.release()

    harness.run(body)


@both
def test_one_counter_for_both_sides(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            tokens = [java.fenced()]
            assert java.unlock() == 1
            for _ in range(3):
                async with locks.lock("x") as hold:
                    tokens.append(hold.token)
                tokens.append(java.fenced())
                assert java.unlock() == 1
            assert tokens == sorted(set(tokens))
            assert tokens[2] == tokens[1] + 1, "Redisson counts on from ours"

    harness.run(body)


@both
def test_a_fenced_counter_that_was_lost_goes_on_above(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            async with locks.lock("x") as before:
                pass
            for each in java.redis.keys(f"*{namespace}*"):
                java.redis.delete(each)
            async with locks.lock("x") as after:
                assert after.token > before.token
            assert java.fenced() > after.token
            java.unlock()

    harness.run(body)


@both
def test_a_read_write_lock_is_refused_and_left_alone(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for mode, field in (("read", java.owner), ("write", f"{java.owner}:write")):
                java.redis.hset(key, mapping={"mode": mode, field: 1})
                java.redis.pexpire(key, 60_000)
                before = java.redis.hgetall(key)
                with pytest.raises(NameInUse, match=r"'x' cannot be a lock: its key .* is a read-write lock of"):
                    await locks.lock("x").acquire(timeout=1)
                assert java.redis.hgetall(key) == before
                java.redis.delete(key)
            java.redis.set(key, "7")
            with pytest.raises(NameInUse, match=r"is a string of another program; choose another name$"):
                await locks.lock("x").acquire(timeout=1)

    harness.run(body)


@both
def test_a_late_release_frees_nobody_else(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.3, renew=False).acquire()
            await harness.sleep(0.4)
            assert java.lock()
            with pytest.raises(LeaseLost):
                await hold.release()
            assert java.redis.hkeys(key) == [java.owner.encode()]
            assert java.unlock() == 1

    harness.run(body)


@both
def test_a_java_holder_is_shown(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert java.lock(lease=7)
            (holder,) = (await locks.inspect("x")).holders
            assert (holder.host, holder.owner, holder.token) == (FOREIGN, f"{FOREIGN}:0:6b7b6e8c", None)
            assert 6 < holder.remaining <= 7
            assert java.unlock() == 1

    harness.run(body)


@both
@pytest.mark.parametrize("name", ["{a}b", "a{b}", "{}"])
def test_names_with_braces_are_written_as_redisson_writes_them(redis_server, java, namespace, harness, name):
    async def body(harness):
        locks, full = harness.client(url_of(redis_server.url, "redisson"), namespace=namespace), f"{namespace}:{name}"
        async with locks.lock(name) as hold:
            assert java.redis.exists(full)
            assert int(java.redis.get(f"redisson_lock_token:{full}")) == hold.token

    harness.run(body)

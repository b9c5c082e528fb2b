"""Redisson's semaphore with permits that expire, on a real server, against the steps that it was recorded to send.

Real Java programs take part in ``tests/foreign``.
"""

from __future__ import annotations

import secrets
import time

import pytest
import redis
from layout_keys import assert_clean, url_of

from leasehold import Client, LeaseLost, NameInUse, Unsupported
from leasehold._model import Granted, Kind, LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold.layouts.redis.inspecting import FOREIGN
from support.flavors import both
from support.patience import until_in

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine."""

SKEW = 1.0
"""Seconds for which a permit of ours outlives its lease."""

ACQUIRE = """
local expired = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, ARGV[1])
if #expired > 0 then
  redis.call('zrem', KEYS[2], unpack(expired))
  local value = redis.call('incrby', KEYS[1], #expired)
  if tonumber(value) > 0 then redis.call('publish', KEYS[3], value) end
end
local value = redis.call('get', KEYS[1])
if value and tonumber(value) >= tonumber(ARGV[1]) then
  redis.call('decrby', KEYS[1], ARGV[1])
  redis.call('zadd', KEYS[2], ARGV[2], ARGV[4])
  return 'OK'
end
return nil
"""

RELEASE = """
local expire = redis.call('zscore', KEYS[3], ARGV[1])
if not expire then return 0 end
redis.call('zrem', KEYS[3], ARGV[1])
redis.call('publish', KEYS[2], redis.call('incrby', KEYS[1], ARGV[2]))
return tonumber(expire) <= tonumber(ARGV[3]) and 0 or 1
"""


class Java:
    """A Java program, by the recorded scripts of Redisson 4.7."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.redis = client
        self.key = key
        self.out = f"{{{key}}}:timeout"
        self.channel = f"redisson_sc:{{{key}}}"

    def set_permits(self, count: int) -> None:
        self.redis.set(self.key, count, nx=True)
        self.redis.publish(self.channel, count)

    def acquire(self, lease: float = 30.0) -> bytes | None:
        permit, now = secrets.token_bytes(16), round(time.time() * 1000)
        args = 1, now + round(lease * 1000), now, permit
        return permit if self.redis.eval(ACQUIRE, 3, self.key, self.out, self.channel, *args) else None

    def release(self, permit: bytes) -> int:
        now = round(time.time() * 1000)
        return self.redis.eval(RELEASE, 3, self.key, self.channel, self.out, permit, 1, now)


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, "redisson")


@pytest.fixture
def key(namespace):
    """The key of the semaphore ``x``."""
    return f"{namespace}:x"


@pytest.fixture
def java(redis_server, key):
    with redis.Redis.from_url(redis_server.url) as client:
        yield Java(client, key)


def sem(locks, permits=3, **options):
    return locks.semaphore("x", permits, fair=False, **options)


@both
def test_the_keys_are_those_of_redisson(redis_server, java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await sem(locks, lease=20).acquire(2)
            assert java.redis.get(key) == b"1"
            assert java.redis.ttl(key) == -1
            permits = java.redis.zrange(java.out, 0, -1, withscores=True)
            assert [len(permit) for permit, _ in permits] == [16, 16]
            for _, ends in permits:
                assert 19 + SKEW < ends / 1000 - time.time() <= 20.1 + SKEW
            with java.redis.pubsub() as listener:
                listener.subscribe(java.channel)
                assert listener.get_message(timeout=1)["type"] == "subscribe"
                await hold.release()
                assert listener.get_message(timeout=1)["data"] == b"3"
            assert java.redis.get(key) == b"3"
            assert not java.redis.exists(java.out)
            java.redis.delete(key)
        assert_clean(redis_server, "redisson", namespace)

    harness.run(body)


@both
def test_permits_of_both_sides_count_together(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.set_permits(3)
            first, second = java.acquire(), java.acquire()
            hold = await sem(locks).acquire(timeout=0)
            assert await sem(locks).acquire(blocking=False) is None
            assert await sem(locks).available() == 0
            assert java.acquire() is None
            assert java.release(first) == 1
            assert await sem(locks).acquire(2, blocking=False) is None
            assert await sem(locks).available() == 1
            await hold.release()
            two = await sem(locks).acquire(2, blocking=False)
            assert two.token > hold.token
            assert java.release(second) == 1
            third = java.acquire()
            assert java.acquire() is None
            await two.release()
            assert java.release(third) == 1
            assert java.redis.get(java.key) == b"3"

    harness.run(body)


@both
def test_waiters_are_notified(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.set_permits(2)
            for _ in range(2):
                taken = [java.acquire(60), java.acquire(60)]
                waiters = [harness.spawn(lambda n=n: sem(locks, 2).acquire(n, timeout=20)) for n in (2, 1)]
                await harness.sleep(0.5)
                start = harness.now()
                assert java.release(taken[0]) == 1
                one = await waiters[1].result()  # it passes the larger one, as in Redisson
                assert harness.now() - start < NOTIFIED
                assert java.release(taken[1]) == 1
                await one.release()
                two = await waiters[0].result()
                assert harness.now() - start < 2 * NOTIFIED
                await two.release()

    harness.run(body)


@both
def test_an_expired_permit_of_either_side_is_taken_back(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.set_permits(1)
            assert java.acquire(lease=1.0)
            start = harness.now()
            hold = await sem(locks, 1, lease=0.5, renew=False).acquire(timeout=5)
            assert 0.8 < harness.now() - start < 1.0 + NOTIFIED
            await harness.sleep(0.6)
            assert hold.lost
            assert java.acquire() is None, "Redisson's clock may be ahead"
            await harness.sleep(SKEW)
            permit = java.acquire()
            assert permit
            with pytest.raises(LeaseLost):
                await hold.release()
            assert java.redis.zrange(java.out, 0, -1) == [permit]
            assert java.release(permit) == 1
            assert java.redis.get(key) == b"1"

    harness.run(body)


@both
def test_the_watchdog_keeps_permits(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await sem(locks, lease=0.6).acquire(3)
            await harness.sleep(2.5)
            hold.raise_if_lost()
            assert java.acquire() is None
            await hold.release()

    harness.run(body)


@both
def test_another_number_or_kind_is_refused_and_left_alone(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.set_permits(5)
            with pytest.raises(NameInUse, match="is a semaphore of 5 permits of another program"):
                await sem(locks).acquire(timeout=1)
            with pytest.raises(NameInUse, match="is a string of another program"):
                await locks.lock("x").acquire(timeout=1)
            java.redis.set(key, "held")
            with pytest.raises(NameInUse, match="is a string of another program"):
                await sem(locks).acquire(timeout=1)
            java.redis.delete(key)
            async with locks.lock("x"):
                with pytest.raises(NameInUse, match="is a hash of another program"):
                    await sem(locks).acquire(timeout=1)

    harness.run(body)


@both
def test_a_counter_that_was_lost_is_counted_anew(java, url, key, namespace, harness):
    """As by an eviction of that key alone."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for out in (2, 1):
                holds = [await sem(locks, 2).acquire(timeout=0) for _ in range(out)]
                java.redis.delete(key)
                assert await sem(locks, 2).acquire(3 - out, blocking=False) is None
                java.redis.delete(key)
                for hold in holds:
                    await hold.release()
                both = await sem(locks, 2).acquire(2, timeout=0)
                assert await sem(locks, 2).acquire(blocking=False) is None
                await both.release()
                assert java.redis.get(key) == b"2"

    harness.run(body)


@both
def test_permits_out_that_were_lost_are_reported_with_the_remedy(java, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            await sem(locks, 2).acquire()
            java.redis.delete(java.out)
            with pytest.raises(NameInUse, match=f"a key of it was lost, delete '{key}', '{java.out}' while nobody"):
                await sem(locks, 2).acquire(timeout=0)
            java.redis.delete(key, java.out)
            assert await sem(locks, 2).acquire(2, timeout=0)

    harness.run(body)


@both
@pytest.mark.parametrize("which", range(3))
def test_a_permit_that_is_released_alone_is_a_loss(java, url, namespace, harness, which):
    """Its semaphore counts it as free, so another may have it, and a repeated claim has not. The rest is given back."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.set_permits(5)
            hold = await sem(locks, 5).acquire(3)
            assert java.release(sorted(java.redis.zrange(java.out, 0, -1))[which])
            other = await sem(locks, 5).acquire(3, timeout=1)
            ticket = getattr(hold, "_core", hold)._lease.ticket
            assert not isinstance(await locks.store.try_acquire("x", ticket, join=False, within=5), Granted)
            with pytest.raises(LeaseLost):
                await hold.renew()
            with pytest.raises(LeaseLost):
                await hold.release()
            await until_in(harness, lambda: java.redis.zcard(java.out) == 3, 5.0)
            await other.release()
            assert await sem(locks, 5).available() == 5

    harness.run(body)


@both
@pytest.mark.parametrize("kind", [Kind.READ_WRITE, Kind.SEMAPHORE])
def test_a_repeated_claim_does_not_lower_the_tokens_of_others(java, url, key, namespace, harness, kind):
    """The last token is above the server's clock, as after that was set back."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.redis.hset(f"leasehold:layout:redisson:{{{key}}}:side", "f", 9 * 10**15)
            mode = LockMode(kind, exclusive=False, limit=3 if kind is Kind.SEMAPHORE else 1)
            a, b, c = (
                Ticket(ticket_id(each * 16), LeaseTerms(mode, Owner("h", 1, "c"), 30.0)) for each in (b"a", b"b", b"c")
            )
            granted = [await locks.store.try_acquire("x", ticket, join=False, within=5) for ticket in (a, b, a, c)]
            assert [each.token - 9 * 10**15 for each in granted] == [1, 2, 1, 3]

    harness.run(body)


@both
def test_holders_of_both_sides_are_shown(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java.set_permits(5)
            assert java.acquire(lease=7)
            hold = await sem(locks, 5, lease=20, meta="mine").acquire(3)
            found = await locks.inspect("x")
            assert found.kind == "semaphore"
            by_token = {holder.token: holder for holder in found.holders}
            assert by_token.keys() == {hold.token, None}
            assert by_token[hold.token].meta == "mine"
            assert (by_token[None].host, 6 < by_token[None].remaining <= 7) == (FOREIGN, True)
            assert await sem(locks, 5).available() == 1
            assert await locks.force_release("x", hold.token)
            assert await sem(locks, 5).available() == 4
            with pytest.raises(LeaseLost):
                await hold.release()

    harness.run(body)


def test_what_the_format_cannot_carry_is_refused_when_it_is_made():
    with Client.from_url("redis://localhost?layout=redisson") as locks:
        with pytest.raises(Unsupported, match=r"fair order of readers, writers and permits .*; .* Redisson"):
            locks.semaphore("x", 3)
        with pytest.raises(Unsupported, match=r"keeps no values with versions; .* Redisson"):
            locks.latch("x", 3)


@both
def test_a_user_who_may_no_longer_publish_changes_no_count(redis_server, java, key, namespace, harness):
    user = f"user-{namespace}"
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "+@all", "~*", "allchannels")

    async def body(harness):
        url = url_of(f"redis://{user}:secret@127.0.0.1:{redis_server.port}", "redisson")
        async with harness.client(url, namespace=namespace) as locks:
            for _ in range(3):
                hold = await locks.semaphore("x", 3, fair=False).acquire(2)
                assert java.redis.get(key) == b"1"
                assert await hold.release()
                assert java.redis.get(key) == b"3"
                redis_server.command("ACL", "SETUSER", user, "resetchannels", "&leasehold:*")

    try:
        harness.run(body)
    finally:
        redis_server.command("ACL", "DELUSER", user)

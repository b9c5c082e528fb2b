"""Spring's key on a real Redis server, against the commands that Spring was recorded to send, in both of its types."""

from __future__ import annotations

from uuid import uuid4

import pytest
import redis
from layout_keys import assert_clean, url_of

from leasehold import NameInUse
from support.flavors import both

SOON = 1.0

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine."""

OBTAIN = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]); return 1 end
if not held then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]); return 1 end
return 0
"""

RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('UNLINK', KEYS[1])
if ARGV[2] ~= '' then redis.call('PUBLISH', ARGV[2], KEYS[1]) end
return 1
"""


class Spring:
    """One registry; with ``channel`` of the type PUB_SUB_LOCK."""

    def __init__(self, client: redis.Redis, key: str, *, channel: bool) -> None:
        self.redis = client
        self.key = key
        self.channel = f"locks-channel:{key}"
        self._publish = self.channel if channel else ""
        self.id = str(uuid4())

    def lock(self, lease: float = 30.0) -> bool:
        return self.redis.eval(OBTAIN, 1, self.key, self.id, round(lease * 1000)) == 1

    def unlock(self) -> bool:
        return self.redis.eval(RELEASE, 1, self.key, self.id, self._publish) == 1


@pytest.fixture(params=["spin", "pubsub"])
def spring(redis_server, namespace, request):
    with redis.Redis.from_url(redis_server.url) as client:
        yield Spring(client, f"locks:{namespace}:x", channel=request.param == "pubsub")


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, "spring")


@both
def test_the_key_is_a_string_with_the_lease(redis_server, spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=20).acquire()
            assert spring.redis.type(spring.key) == b"string"
            assert 19_000 < spring.redis.pttl(spring.key) <= 20_000
            await hold.release()
            assert not spring.redis.exists(spring.key)
        assert_clean(redis_server, "spring", namespace)

    harness.run(body)


@both
def test_each_side_keeps_the_other_out(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            async with locks.lock("x"):
                assert not spring.lock()
                assert not spring.unlock()
            assert spring.lock()
            assert await locks.lock("x").acquire(blocking=False) is None
            assert spring.unlock()
            async with locks.lock("x", timeout=0):
                pass

    harness.run(body)


@both
def test_a_release_publishes_what_spring_waits_for(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with spring.redis.pubsub() as listener:
                listener.psubscribe("locks-channel:*")
                assert listener.get_message(timeout=1)["type"] == "psubscribe"
                async with locks.lock("x"):
                    pass
                message = listener.get_message(timeout=1)
                assert (message["channel"], message["data"]) == (spring.channel.encode(), spring.key.encode())
                assert listener.get_message(timeout=0.05) is None

    harness.run(body)


@both
def test_a_waiter_is_woken_by_the_message_or_polls(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            assert spring.lock()
            waiter = harness.spawn(lambda: locks.lock("x").acquire(timeout=20))
            await harness.sleep(0.5)
            start = harness.now()
            assert spring.unlock()
            hold = await waiter.result()
            assert harness.now() - start < 0.15 + NOTIFIED
            waiter = harness.spawn(lambda: other.lock("x").acquire(timeout=20))
            await harness.sleep(0.5)
            await hold.release()
            await (await waiter.result()).release()

    harness.run(body)


@both
def test_a_dead_program_is_followed_at_its_end(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            start = harness.now()
            assert spring.lock(1.0)
            hold = await locks.lock("x").acquire(timeout=20)
            assert 0.9 < harness.now() - start < 1.0 + SOON
            assert not spring.unlock(), "its late release frees no lock of another client"
            hold.raise_if_lost()
            await hold.release()

    harness.run(body)


@both
def test_a_key_of_another_type_is_refused_with_a_remedy(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            spring.redis.rpush(spring.key, "a")
            with pytest.raises(
                NameInUse, match=r"is a list of .*; choose another name, or another registry= in the URL$"
            ):
                await locks.lock("x").acquire(timeout=1)
            spring.redis.delete(spring.key)

    harness.run(body)

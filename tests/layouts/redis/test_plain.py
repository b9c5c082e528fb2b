"""The plain key on a real server, shared with redis-py's own Lock: what is stored, and how each side waits."""

from __future__ import annotations

import pytest
import redis
from layout_keys import assert_clean, url_of

from leasehold import LeaseLost, NameInUse
from leasehold._model import ReleaseReason, Wait
from leasehold.layouts.redis.inspecting import FOREIGN
from leasehold_lab.conformance.case_context import ticket
from support.flavors import both

SOON = 2.0


@pytest.fixture
def peer(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, "plain")


@pytest.fixture
def key(namespace):
    """The key of the lock ``x``."""
    return f"{namespace}:x"


@both
def test_the_key_is_a_string_with_the_lease(redis_server, peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=20).acquire()
            assert peer.type(key) == b"string"
            assert 19_000 < peer.pttl(key) <= 20_000
            assert len(peer.get(key)) == 22
            await hold.release()
            assert not peer.exists(key)
        assert_clean(redis_server, "plain", namespace)

    harness.run(body)


@both
def test_each_side_keeps_the_other_out(peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            theirs = peer.lock(key, timeout=10)
            async with locks.lock("x"):
                assert not theirs.acquire(blocking=False)
                assert theirs.locked()
            assert theirs.acquire(blocking=False)
            assert await locks.lock("x").acquire(blocking=False) is None
            assert await locks.lock("x").locked()
            theirs.release()
            assert not await locks.lock("x").locked()

    harness.run(body)


@both
def test_each_side_gets_the_lock_when_the_other_releases(peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            theirs = peer.lock(key, timeout=10, sleep=0.01, thread_local=False)
            theirs.acquire()
            mine = harness.spawn(lambda: locks.lock("x").acquire(timeout=SOON))
            await harness.sleep(0.3)
            start = harness.now()
            theirs.release()
            hold = await mine.result()
            assert harness.now() - start < 0.15 + 0.25, "no message comes: it polls"
            assert not theirs.acquire(blocking=False)
            await hold.release()
            assert theirs.acquire(blocking=False)
            theirs.release()

    harness.run(body)


@both
def test_the_watchdog_keeps_the_key(peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.6).acquire()
            for _ in range(15):
                assert not peer.lock(key, timeout=5).acquire(blocking=False)
                await harness.sleep(0.1)
            hold.raise_if_lost()
            await hold.release()

    harness.run(body)


@both
def test_a_lapsed_lock_of_either_side_is_taken_over_and_its_late_release_refused(peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.3, renew=False).acquire()
            theirs = peer.lock(key, timeout=0.5, blocking_timeout=SOON, sleep=0.01)
            assert theirs.acquire()
            with pytest.raises(LeaseLost):
                await hold.release()
            assert peer.exists(key), "a late release frees no lock of another client"
            after = await locks.lock("x").acquire(timeout=SOON)
            with pytest.raises(redis.exceptions.LockNotOwnedError):
                theirs.release()
            after.raise_if_lost()
            assert await after.release()

    harness.run(body)


@both
def test_a_hold_whose_key_was_deleted_is_lost(peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.9).acquire()
            peer.delete(key)
            with peer.lock(key, timeout=5, blocking=False):
                await harness.sleep(0.6)
                assert hold.lost
                with pytest.raises(LeaseLost):
                    await hold.release()
                assert peer.exists(key)

    harness.run(body)


@both
def test_tokens_rise_over_holds_of_both_sides_and_a_flush(peer, url, key, namespace, harness):
    async def body(harness):
        tokens = []
        async with harness.client(url, namespace=namespace) as locks:
            for turn in range(6):
                with peer.lock(key, timeout=5, blocking=False):
                    pass
                async with locks.lock("x") as hold:
                    tokens.append(hold.token)
                if turn == 3:
                    for each in peer.keys(f"*{namespace}*"):
                        peer.delete(each)
        assert tokens == sorted(set(tokens))

    harness.run(body)


@both
def test_a_lock_without_an_end_is_respected(peer, url, key, namespace, harness):
    """redis-py's lock without ``timeout`` has no lease."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            theirs = peer.lock(key, thread_local=False)
            theirs.acquire()
            assert await locks.lock("x").acquire(timeout=0.3) is None
            (info,) = (await locks.inspect("x")).holders
            assert info.remaining == float("inf")
            mine = harness.spawn(lambda: locks.lock("x").acquire(timeout=SOON))
            await harness.sleep(0.2)
            theirs.release()
            await (await mine.result()).release()

    harness.run(body)


@both
def test_a_foreign_holder_is_shown_without_the_value_that_frees_it(peer, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with peer.lock(key, timeout=7, blocking=False) as theirs:
                value = theirs.local.token.decode()
                info = await locks.inspect("x")
                (holder,) = info.holders
                assert (holder.host, holder.token) == (FOREIGN, None)
                assert 6 < holder.remaining <= 7
                assert value not in repr(info)
                assert not await locks.force_release("x", info.token), "it has no token, so it cannot be named"
                assert peer.get(key) == value.encode()

    harness.run(body)


@both
@pytest.mark.parametrize("kind", ["hash", "list", "set", "zset"])
def test_a_key_of_another_type_is_refused(peer, url, key, namespace, harness, kind):
    fill = {
        "hash": lambda: peer.hset(key, "a", "1"),
        "list": lambda: peer.rpush(key, "a"),
        "set": lambda: peer.sadd(key, "a"),
        "zset": lambda: peer.zadd(key, {"a": 1}),
    }

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            fill[kind]()
            before = peer.dump(key)
            with pytest.raises(
                NameInUse, match=rf"'x' cannot be a lock: its key .* is a {kind} of another program; .*prefix="
            ):
                await locks.lock("x").acquire(timeout=1)
            assert await locks.inspect("x") is None
            assert peer.dump(key) == before
            peer.delete(key)
            async with locks.lock("x"):
                pass

    harness.run(body)


@both
def test_the_prefix_and_the_namespace_precede_the_name(redis_server, peer, namespace, harness):
    async def body(harness):
        plain = harness.client(url_of(redis_server.url, "plain", prefix=f"{namespace}redlock:"))
        async with plain.lock("x"):
            assert peer.exists(f"{namespace}redlock:x")
        spaced = harness.client(url_of(redis_server.url, "plain", prefix="p:"), namespace=f"{namespace}:a%")
        async with spaced.lock("x:y"):
            assert peer.exists(f"p:{namespace}%3Aa%25:x:y")
        bare = harness.client(url_of(redis_server.url, "plain"))
        async with bare.lock(f"{namespace}x"):
            assert peer.exists(f"{namespace}x")

    harness.run(body)


@both
def test_clients_that_split_a_key_differently_share_its_tokens(redis_server, namespace, harness):
    async def body(harness):
        one = harness.client(url_of(redis_server.url, "plain", prefix=f"{namespace}:"))
        other = harness.client(url_of(redis_server.url, "plain"), namespace=namespace)
        tokens = []
        for locks in (one, other, one, other):
            async with locks.lock("x") as hold:
                tokens.append(hold.token)
                assert (await (other if locks is one else one).inspect("x")).token == hold.token
        assert tokens == sorted(set(tokens))

    harness.run(body)


@both
def test_a_late_claim_does_not_acquire_after_its_release(redis_server, peer, key, namespace, harness):
    """A claim without a reply may reach the server after its own release: it is refused there."""

    async def body(harness):
        async with harness.client(url_of(redis_server.url, "plain"), namespace=namespace) as locks:
            store, mine = locks.store, ticket(locks)
            store._unanswered[mine.id] = None
            assert not await store.release("x", mine, reason=ReleaseReason.RELEASE, within=2)
            answer = await store.try_acquire("x", mine, join=True, within=2)
            assert isinstance(answer, Wait)
            assert not peer.exists(key)
            await store.release("x", mine, reason=ReleaseReason.RELEASE, within=2)
            async with locks.lock("x", timeout=0):
                pass

    harness.run(body)

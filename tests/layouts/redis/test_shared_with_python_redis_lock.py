"""Processes with python-redis-lock and with leasehold share one lock; and what each side leaves on the server."""

from __future__ import annotations

import time

import pytest
import redis
import redis_lock
from layout_keys import SIGNAL, assert_clean, url_of

from leasehold import LeaseLost
from leasehold.layouts.redis.inspecting import FOREIGN
from support.flavors import both
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

LAYOUT, THEIRS = "python-redis-lock", "python-redis-lock"

OURS = ("ours", "ours-asyncio")

NOISE = 0.2
"""Seconds of a busy machine. A release of ours is a message to them, and is seen within 45 ms the other way."""


@pytest.fixture
def peer(redis_server):
    with redis.StrictRedis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, LAYOUT)


def test_three_and_three_count_together(redis_server, namespace):
    with lock_peers(redis_server, LAYOUT, namespace) as peers:
        check_counting(peers, (THEIRS,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ours", OURS)
def test_each_side_keeps_the_other_out_and_is_served_after_it(redis_server, namespace, ours):
    with lock_peers(redis_server, LAYOUT, namespace, 10.0) as peers:
        check_exclusion(peers, ours, THEIRS, NOISE)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_of_either_side_blocks_for_a_lease(redis_server, namespace, ours, record_property):
    """Their waiter has no message of an expiry, and sleeps for one lease of its own at a time."""
    with lock_peers(redis_server, LAYOUT, namespace, 2.0) as peers:
        for killed, next_ in ((ours, THEIRS), (THEIRS, ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, 2.0 + (0.5 if next_ == THEIRS else 0.0), NOISE)
            record_property("ms:layouts: free after kill -9, python-redis-lock", round(took * 1000))


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_waiter_of_ours_keeps_no_signal_from_theirs(redis_server, namespace, ours):
    """It has popped nothing, so the next release wakes them."""
    with lock_peers(redis_server, LAYOUT, namespace, 10.0) as peers:
        holder, dead, alive = peers.start(ours, ours, THEIRS)
        holder.acquires()
        for waiter in (dead, alive):
            waiter.order("lock")
            time.sleep(0.3)
        dead.kill()
        start = time.monotonic()
        assert holder.ask("unlock") == "released"
        assert alive.answer().startswith("held")
        assert time.monotonic() - start < NOISE


@both
def test_keys_and_signal_are_those_of_the_other_library(redis_server, peer, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=20).acquire()
            assert 19_000 < peer.pttl(f"lock:{namespace}:x") <= 20_000
            theirs = redis_lock.Lock(peer, f"{namespace}:x", expire=20)
            assert theirs.locked()
            assert not theirs.acquire(blocking=False)
            peer.lpush(f"{SIGNAL}{namespace}:x", "1", "1")  # left by others
            await hold.release()
            assert not theirs.locked()
            assert peer.lrange(f"{SIGNAL}{namespace}:x", 0, -1) == [b"1"], "one release wakes one waiter"
            assert 0 < peer.pttl(f"{SIGNAL}{namespace}:x") <= 1000
        assert_clean(redis_server, LAYOUT, namespace)

    harness.run(body)


@both
def test_a_release_in_vain_signals_nothing(peer, url, namespace, harness):
    """Their lock is held by another, so a signal would wake a waiter for nothing."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", renew=False, lease=0.3).acquire()
            await harness.sleep(0.4)
            theirs = redis_lock.Lock(peer, f"{namespace}:x", expire=20)
            assert theirs.acquire(blocking=False)
            with pytest.raises(LeaseLost):
                await hold.release()
            assert not peer.exists(f"{SIGNAL}{namespace}:x")
            assert theirs.get_owner_id() == theirs.id
            theirs.release()

    harness.run(body)


@both
def test_a_holder_whose_lock_is_reset_is_told(peer, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.6).acquire()
            redis_lock.Lock(peer, f"{namespace}:x", expire=20).reset()
            await harness.sleep(0.5)
            assert hold.lost

    harness.run(body)


@both
def test_a_holder_of_the_other_library_is_shown_without_the_value_that_frees_it(peer, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with redis_lock.Lock(peer, f"{namespace}:x", expire=7) as theirs:
                info = await locks.inspect("x")
                (holder,) = info.holders
                assert (holder.host, holder.token) == (FOREIGN, None)
                assert 6 < holder.remaining <= 7
                assert theirs.id not in repr(info)
            endless = redis_lock.Lock(peer, f"{namespace}:x")
            endless.acquire()
            assert await locks.lock("x").acquire(timeout=0.3) is None
            (holder,) = (await locks.inspect("x")).holders
            assert holder.remaining == float("inf")
            endless.release()

    harness.run(body)

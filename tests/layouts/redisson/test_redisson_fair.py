"""Redisson's fair lock on a real server: against the steps that Redisson was recorded to send.

Real Java programs take part in ``tests/foreign``.
"""

from __future__ import annotations

import pytest
import redis
from fair_by_hand import WAIT, Java
from layout_keys import assert_clean, url_of

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold_lab.proxy.proxy import FaultProxy
from support.flavors import both
from support.patience import until_in

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine."""


@pytest.fixture
def url(redis_server):
    return url_of(redis_server.url, "redisson")


@pytest.fixture
def java(redis_server, namespace):
    """Three threads of a Java program."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield [Java(client, f"{namespace}:x", thread) for thread in (1, 2, 3)]


def fair(locks, **options):
    return locks.lock("x", fair=True, **options)


@both
def test_a_waiter_takes_its_place_in_the_queue_of_redisson(redis_server, java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder, behind, _ = java
            assert holder.lock()
            waiter = harness.spawn(lambda: fair(locks, lease=20).acquire())
            await until_in(harness, lambda: len(holder.waiting()) == 1)
            (ours,) = holder.waiting()
            assert ours.endswith(":1")
            assert 18 < holder.place(ours) <= 20.1
            assert not behind.lock()
            assert holder.waiting() == [ours, behind.owner]
            assert 317 < holder.place(behind.owner) <= 320.1, "its own time after ours"
            assert holder.unlock() == 1
            start = harness.now()
            hold = await waiter.result()
            assert harness.now() - start < NOTIFIED
            assert java[0].redis.hgetall(f"{namespace}:x") == {ours.encode(): b"1"}
            assert holder.waiting() == [behind.owner]
            assert 297 < holder.place(behind.owner) <= 300.1, "our time is subtracted when we leave the queue"
            assert not behind.lock()
            with holder.redis.pubsub() as listener:
                listener.subscribe(f"{holder.channel}:{behind.owner}")
                assert listener.get_message(timeout=1)["type"] == "subscribe"
                await hold.release()
                assert listener.get_message(timeout=1)["data"] == b"0"
            assert behind.lock()
            assert behind.unlock() == 1
        assert_clean(redis_server, "redisson", namespace)

    harness.run(body)


@both
def test_nobody_overtakes_the_first(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder, first, second = java
            assert holder.lock()
            assert not first.lock()
            waiter = harness.spawn(lambda: fair(locks).acquire())
            await until_in(harness, lambda: len(first.waiting()) == 2)
            assert not second.lock()
            assert holder.unlock() == 1
            await harness.sleep(0.2)
            assert await fair(locks).acquire(blocking=False) is None
            assert len(first.waiting()) == 3, "who does not wait has no place"
            assert first.lock()
            assert first.unlock() == 1
            hold = await waiter.result()
            assert not second.lock()
            await hold.release()
            assert second.lock()
            assert second.unlock() == 1

    harness.run(body)


@both
def test_a_waiter_that_gives_up_leaves_the_queue_and_the_next_is_notified(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder, behind, _ = java
            assert holder.lock()
            waiter = harness.spawn(lambda: fair(locks, lease=20).acquire(timeout=1.0))
            await until_in(harness, lambda: len(holder.waiting()) == 1)
            assert not behind.lock()
            await harness.sleep(0.3)  # it claims again when it is subscribed
            holder.redis.delete(holder.key)  # the holder's lease ends
            with holder.redis.pubsub() as listener:
                listener.subscribe(f"{holder.channel}:{behind.owner}")
                assert listener.get_message(timeout=1)["type"] == "subscribe"
                assert await waiter.result() is None
                assert listener.get_message(timeout=1)["data"] == b"0"
            assert holder.waiting() == [behind.owner]
            assert behind.place(behind.owner) <= 300.1
            assert behind.lock()
            assert behind.unlock() == 1

    harness.run(body)


@both
def test_the_watchdog_keeps_the_place_of_a_waiter_which_sends_nothing_else(redis_server, java, namespace, harness):
    async def body(harness):
        with FaultProxy(redis_server.port) as proxy:
            through = url_of(f"redis://127.0.0.1:{proxy.port}", "redisson")
            async with harness.client(through, namespace=namespace) as locks:
                holder, ahead, _ = java
                assert holder.lock(lease=60)
                assert not ahead.lock()
                waiter = harness.spawn(lambda: fair(locks, lease=0.6).acquire())
                await until_in(harness, lambda: len(holder.waiting()) == 2)
                _, ours = holder.waiting()
                before, sent = holder.place(ours), proxy.count(b"EVALSHA")
                assert before > 300
                await harness.sleep(2.0)
                assert abs(holder.place(ours) - before) < 0.5, "three times its lease has passed"
                assert proxy.count(b"EVALSHA") - sent <= 12, "renewals only"
                assert holder.unlock() == 1
                assert ahead.lock()
                assert 0 < ahead.place(ours) < 61, "the time of the one ahead is subtracted"
                await until_in(harness, lambda: ahead.place(ours) <= 0.61)
                await harness.sleep(1.0)
                assert ahead.unlock() == 1
                await (await waiter.result()).release()

    harness.run(body)


@both
def test_a_place_that_has_ended_is_taken_out_and_the_next_acquires(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            _, dead, _ = java
            hold = await fair(locks).acquire()
            assert not dead.lock()
            waiter = harness.spawn(lambda: fair(locks, lease=30).acquire())
            await until_in(harness, lambda: len(dead.waiting()) == 2)
            dead.redis.zadd(dead.places, {dead.owner: dead.now() + 1000})
            ends = harness.now() + 1.0
            await hold.release()
            got = await waiter.result()
            assert -0.02 < harness.now() - ends < NOTIFIED
            await got.release()

    harness.run(body)


@both
@pytest.mark.parametrize("holds", [True, False])
def test_a_waiter_that_redisson_has_taken_out_takes_a_place_again(java, url, namespace, harness, holds):
    """Its client was late, or a Java clock is ahead. It would not be woken any more."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder, behind, _ = java
            assert holder.lock(lease=60)
            waiter = harness.spawn(lambda: fair(locks, lease=1.5).acquire())
            await until_in(harness, lambda: len(holder.waiting()) == 1)
            (ours,) = holder.waiting()
            assert not behind.lock()
            await harness.sleep(0.3)
            holder.redis.lrem(holder.queue, 1, ours)
            holder.redis.zrem(holder.places, ours)
            if not holds:
                assert holder.unlock() == 1
                assert behind.lock()
                assert behind.unlock() == 1
                await (await waiter.result()).release()
                return
            await until_in(harness, lambda: holder.waiting() == [behind.owner, ours])
            assert holder.unlock() == 1
            assert behind.lock()
            assert behind.unlock() == 1
            await (await waiter.result()).release()

    harness.run(body)


@both
def test_a_place_does_not_end_early_in_a_queue_that_is_never_empty(java, url, namespace, harness):
    """Redisson's places begin when the last one's does, so they are older and older."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder, first, second = java
            assert holder.lock(lease=60)
            assert not first.lock()
            first.redis.zadd(first.places, {first.owner: first.now() + 2000})  # it began 298 s ago
            waiter = harness.spawn(lambda: fair(locks, lease=1.5).acquire())
            await until_in(harness, lambda: len(holder.waiting()) == 2)
            assert not second.lock()
            (_, ours, _) = holder.waiting()
            assert 300 < holder.place(ours) < 302
            assert holder.unlock() == 1
            assert first.lock()
            assert 0 < first.place(ours) < 2
            assert not second.lock()
            assert first.unlock() == 1
            hold = await waiter.result()
            assert not second.lock()
            await hold.release()

    harness.run(body)


@both
def test_whoever_finds_another_first_wakes_it(java, url, namespace, harness):
    """Of two waiters of a client, one has the timer of the holder's lease, and the other is first in the queue."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder = java[0]
            assert holder.lock(lease=2.0)
            waiters = []
            for count in (1, 2):
                waiters.append(harness.spawn(lambda: fair(locks, lease=20).acquire(timeout=10)))
                await until_in(harness, lambda count=count: len(holder.waiting()) == count)
            for place, owner in enumerate(reversed(holder.waiting())):  # as if their requests had overtaken each other
                holder.redis.lset(holder.queue, place, owner)
            for waiter in reversed(waiters):  # nothing is published when the holder's lease runs out
                assert await (await waiter.result()).release()

    harness.run(body)


@both
def test_an_owner_without_a_place_blocks_nobody(java, url, namespace, harness):
    """Redisson waits for it for ever."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            java[0].redis.rpush(java[0].queue, java[1].owner)
            hold = await fair(locks).acquire(timeout=1)
            await hold.release()
            assert not java[0].redis.exists(java[0].queue)

    harness.run(body)


@both
def test_a_dead_one_at_the_head_is_taken_out_though_one_behind_it_came_earlier(java, url, namespace, harness):
    """Redisson took the earlier one out when its client was late, so that one had to queue again."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder = java[0]
            assert holder.lock(lease=2.0)
            start = harness.now()
            waiter = harness.spawn(lambda: fair(locks, lease=20).acquire(timeout=10))
            await until_in(harness, lambda: len(holder.waiting()) == 1)
            (ours,) = holder.waiting()
            dead = Ticket(ticket_id(b"d" * 16), LeaseTerms(LockMode(fair=True), Owner("h", 1, "c"), 1.0))
            await locks.store.try_acquire("x", dead, join=True, within=5)
            (first,) = (one for one in holder.waiting() if one != ours)
            with holder.redis.pipeline() as at_once:  # else our waiter may ask in between, and enter the queue itself
                at_once.lrem(holder.queue, 1, ours).rpush(holder.queue, ours)
                at_once.zadd(holder.places, {first: holder.now() + WAIT}).execute()
            hold = await waiter.result()
            assert hold is not None
            assert harness.now() - start < 2.0 + NOTIFIED
            assert not holder.redis.exists(holder.queue)
            await hold.release()

    harness.run(body)


@both
def test_a_dead_one_at_the_head_delays_the_next_by_its_own_lease_only(java, url, namespace, harness):
    """A release of Java notifies the first alone, and the next of ours would sleep to the end of the holder's lease."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            holder = java[0]
            assert holder.lock(lease=60)
            dead = Ticket(ticket_id(b"d" * 16), LeaseTerms(LockMode(fair=True), Owner("h", 1, "c"), 1.2))
            await locks.store.try_acquire("x", dead, join=True, within=5)
            start = harness.now()
            waiter = harness.spawn(lambda: fair(locks, lease=1.5).acquire(timeout=10))
            await until_in(harness, lambda: len(holder.waiting()) == 2)
            await harness.sleep(0.3)  # it claims again when it is subscribed
            assert holder.unlock() == 1
            await (await waiter.result()).release()
            assert 0.9 < harness.now() - start < 1.2 + 1.5 / 3 + NOTIFIED

    harness.run(body)


@both
def test_fair_and_other_locks_of_one_name_exclude_and_notify_each_other(java, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for first, second in ((fair(locks), locks.lock("x")), (locks.lock("x"), fair(locks))):
                hold = await first.acquire()
                assert await second.acquire(blocking=False) is None
                waiter = harness.spawn(lambda second=second: second.acquire(timeout=5))
                await harness.sleep(0.3)
                start = harness.now()
                await hold.release()
                got = await waiter.result()
                assert harness.now() - start < NOTIFIED
                await got.release()

    harness.run(body)

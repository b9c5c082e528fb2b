"""A user of Redis that lacks a right: what is read of its denials, and who is disturbed by asking."""

from __future__ import annotations

import itertools
import re
from functools import partial

import pytest
import redis
from layout_keys import url_of
from layout_rights import rules, url_for, user

from leasehold import StoreRefused, StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError
from support.flavors import both

__all__ = ["user"]  # pytest finds the fixtures here


# --- replies and messages ----------------------------------------------------------------------------------------


def connections(server, user):
    """Return the ids of a user's connections."""
    return set(re.findall(rf"(?m)^id=(\d+) .* user={user} ", str(server.command("CLIENT", "LIST"))))


async def use_beside(harness, server, namespace, locks, denied):
    """Acquire and release in many tasks while something is denied; each reply must reach its own request."""

    async def use(number):
        key = f"{namespace}:stock{number}"
        for _ in range(15):
            hold = await locks.lock(f"stock{number}").acquire(timeout=5)
            assert server.command("HLEN", key) == 1
            await hold.release()
            assert server.command("EXISTS", key) == 0

    before = connections(server, locks_user(locks))
    assert before
    jobs = [harness.spawn(partial(use, number)) for number in range(8)]
    jobs += [harness.spawn(denied) for _ in range(4)]
    for job in jobs:
        await job.result()
    assert before <= connections(server, locks_user(locks)), "a connection that others use was given up"


def locks_user(locks):
    return locks.store._settings.options["username"]


@both
def test_a_denied_channel_of_another_kind_of_lock_disturbs_no_claim(redis_server, namespace, harness, user):
    chosen = [rule for rule in rules("redisson", namespace) if not rule.startswith("&redisson")]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen, "&redisson_lock__*")

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks:
            await (await locks.lock("warm").acquire()).release()

            async def denied():
                for _ in range(5):
                    with pytest.raises(StoreRefused, match=r"lacks the right &redisson_rwlock:\*; grant .*interop.md"):
                        await locks.rw_lock("rw", fair=False).writer().acquire(timeout=5)

            await use_beside(harness, redis_server, namespace, locks, denied)

    harness.run(body)


@both
def test_a_waiter_is_told_that_its_channel_is_denied_and_disturbs_no_claim(redis_server, namespace, harness, user):
    """Rights are asked for each kind of lock, with the first name: another name may have a channel without a right."""
    chosen = [rule for rule in rules("redisson", namespace) if not rule.startswith("&redisson")]
    channels = f"&redisson_lock__channel:{{{namespace}:stock*"
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen, channels)

    async def body(harness):
        async with (
            harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks,
            harness.client(url_of(redis_server.url, "redisson"), namespace=namespace) as others,
        ):
            await (await locks.lock("stock0").acquire()).release()
            hold = await others.lock("stock9", lease=30).acquire()
            assert await locks.lock("stock9").acquire(timeout=0.2) is None  # the subscription is open
            order = await others.lock("order", lease=30).acquire()

            async def denied():
                for _ in range(3):
                    start = harness.now()
                    with pytest.raises(StoreRefused, match=r"lacks the right &redisson_lock__channel:\*; grant .*int"):
                        await locks.lock("order").acquire(timeout=10)
                    assert harness.now() - start < 5

            await use_beside(harness, redis_server, namespace, locks, denied)
            waiter = harness.spawn(lambda: locks.lock("stock9").acquire(timeout=10))
            await harness.sleep(0.3)
            start = harness.now()
            await hold.release()
            await (await waiter.result()).release()
            assert harness.now() - start < 2
            await order.release()

    harness.run(body)


@both
@pytest.mark.parametrize("layout", ["redisson", "spring"])
def test_asking_for_rights_wakes_no_waiter_of_the_other_library(redis_server, namespace, harness, user, layout):
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules(layout, namespace))
    channel = {
        "redisson": f"redisson_lock__channel:{{{namespace}:x}}",
        "spring": f"locks-channel:locks:{namespace}:x",
    }[layout]

    async def body(harness):
        with redis.Redis(port=redis_server.port) as client, client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(channel)
            listener.get_message(timeout=1)
            async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
                hold = await locks.lock("x").acquire()
                assert listener.get_message(timeout=0.3) is None
                await hold.release()
                assert listener.get_message(timeout=2) is not None

    harness.run(body)


@both
@pytest.mark.parametrize("layout", ["plain", "redisson"])
def test_an_answer_that_says_nothing_of_rights_is_asked_again(redis_server, namespace, harness, user, layout):
    chosen = [rule for rule in rules(layout, namespace) if rule not in ("+publish", "+pttl")]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen)

    async def body(harness):
        async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
            transport = locks.store._transport

            async def loading(command, **_):
                return ReplyError("LOADING Redis is loading the dataset in memory")

            transport.call = loading
            with pytest.raises(StoreUnavailable, match="LOADING"):
                await locks.lock("x").acquire(timeout=0)
            del transport.call
            with pytest.raises(
                StoreRefused, match=r"lacks the rights \+pttl \+publish;|lacks the rights \+publish \+pttl"
            ):
                await locks.lock("x").acquire(timeout=5)
            assert not redis_server.command("EXISTS", f"{namespace}:x")

    harness.run(body)


@both
def test_the_right_that_is_named_is_one_of_the_denied_lock(redis_server, namespace, harness, user):
    """Another thread may claim a lock of another kind meanwhile, which needs other rights."""
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules("redisson", namespace))

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks:
            writer = locks.rw_lock("x", fair=False).writer()
            for lock in (writer, locks.lock("y")):
                await (await lock.acquire()).release()
            redis_server.command("ACL", "SETUSER", user, "-exists")
            transport = locks.store._transport
            call = transport.call

            async def beside(command, *, within):
                transport.call = call
                hold = await harness.spawn(lambda: locks.lock("y").acquire()).result()
                await harness.spawn(hold.release).result()
                return await call(command, within=within)

            transport.call = beside
            with pytest.raises(StoreRefused, match=r"its user lacks the right \+exists; grant"):
                await writer.acquire(timeout=5)

    harness.run(body)


@both
def test_the_rights_and_the_claim_have_one_time_limit(redis_server, namespace, harness, user):
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules("plain", namespace))

    async def body(harness):
        url = url_for(redis_server, user, "plain")
        async with harness.client(url, namespace=namespace, response_timeout=2.0) as locks:
            store, given = locks.store, list[float]()
            call, call_all = store._transport.call, store._transport.call_all

            async def slow(command, *, within):
                given.append(within)
                await harness.sleep(0.4)
                return await call(command, within=within)

            async def slow_all(those, *, within):
                given.append(within)
                await harness.sleep(0.4)
                return await call_all(those, within=within)

            store._transport.call, store._transport.call_all = slow, slow_all
            hold = await locks.lock("x").acquire()
            assert given[0] <= 2.0
            assert len(given) >= 2
            assert all(later < earlier - 0.35 for earlier, later in itertools.pairwise(given[:3]))
            del store._transport.call, store._transport.call_all
            await hold.release()

    harness.run(body)

"""Lost requests and replies at every chunk of a whole run, and cancellations at every step, in each layout."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from layout_keys import LOCKS, assert_clean, url_of

from leasehold import AsyncClient, StoreUnavailable
from leasehold.layouts.redis.scripts import Scripts
from leasehold.stores.redis.connection.base import ReplyError
from leasehold_lab.proxy.proxy import FaultProxy
from support.chunk_faults import FAULTS, sweep
from support.flavors import both
from support.patience import until_in
from support.steps import TO_THE_END, after_steps

DAY_MS = 86_400_000

STEPS = 40
"""More steps of the loop than an acquire, a wait and a release take."""

every_lock = pytest.mark.parametrize("lock", LOCKS)


@both
@every_lock
@pytest.mark.parametrize("step", ["claim", "release", "renew"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_step_whose_request_or_reply_is_lost_is_repeated(redis_server, namespace, harness, lock, step, lost):
    layout, scripts, make = LOCKS[lock]
    script = getattr(Scripts.of(scripts), step)

    async def body(harness):
        with FaultProxy(redis_server.port) as proxy:
            url = url_of(f"redis://127.0.0.1:{proxy.port}", layout)
            async with harness.client(url, namespace=namespace) as locks:
                async with make(locks, "warm", lease=0.3) as hold:
                    await hold.renew()
                fault = proxy.drop_reply(where=script.digest) if lost == "reply" else proxy.cut_at(where=script.digest)
                hold = await make(locks, "x", lease=0.9).acquire(timeout=5)
                if step == "renew":
                    await harness.sleep(1.4)
                hold.raise_if_lost()
                await hold.release()
                assert not hold.lost
                assert fault.hits == 1
                again = await make(locks, "x").acquire(timeout=0)
                assert again.token > hold.token
                await again.release()

    harness.run(body)
    assert_clean(redis_server, layout, namespace)


@both
def test_a_subscription_that_was_refused_for_a_while_is_made_again(redis_server, namespace, harness):
    topic = f"redisson_lock__channel:{{{namespace}:x}}".encode()

    async def body(harness):
        url = url_of(f"redis://127.0.0.1:{redis_server.port}", "redisson")
        async with harness.client(url, namespace=namespace) as locks, harness.client(url, namespace=namespace) as other:
            hold = await locks.lock("x", lease=60.0).acquire()
            waiter = harness.spawn(lambda: other.lock("x", lease=60.0).acquire(timeout=30))
            topics = other.store._topics
            await until_in(harness, lambda: topics.version(topic))
            await harness.sleep(0.3)
            topics._refusals[topic] = ReplyError("BUSY Redis is busy running a script")
            topics._versions.clear()
            topics._on_news(topic)
            await until_in(harness, lambda: topics.version(topic), 5.0)
            start = harness.now()
            await hold.release()
            await (await waiter.result()).release()
            assert harness.now() - start < 0.25

    harness.run(body)


def test_a_connection_that_has_ended_is_not_subscribed(redis_server, namespace):
    async def body():
        url = url_of(f"redis://127.0.0.1:{redis_server.port}", "redisson")
        async with AsyncClient.from_url(url, namespace=namespace) as locks:
            await (await locks.lock("x").acquire()).release()
            transport = locks.store._transport
            listening = asyncio.ensure_future(transport.listen(1.0))
            await asyncio.sleep(0)  # the task that subscribes comes after this one
            transport._connection.end("gone")
            with pytest.raises(StoreUnavailable, match="closed the connection"):
                await listening
            assert await transport.listen(1.0) > 0

    asyncio.run(body())


@both
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.timeout(240)
def test_a_fault_at_every_chunk(redis_server, namespace, harness, lock, name):
    layout, _, make = LOCKS[lock]
    clean, url = partial(assert_clean, redis_server, layout), partial(url_of, layout=layout)
    sweep(redis_server, namespace, harness, name, range(1, 33), assert_clean=clean, url_of=url, make=make)


async def gone(locks):
    end = asyncio.get_running_loop().time() + 2.0
    while (found := await locks.holds()) != []:
        assert asyncio.get_running_loop().time() < end, found
        await asyncio.sleep(0.005)


async def keep(lock):
    """Acquire; a cancelled acquire leaves no hold."""
    return await lock.acquire()


@every_lock
@pytest.mark.parametrize("waits", ["free", "queued", "woken"])
@pytest.mark.timeout(240)
def test_cancel_at_each_step(redis_server, namespace, lock, waits):
    layout, _, make = LOCKS[lock]
    url = url_of(redis_server.url, layout)

    async def body():
        async with (
            AsyncClient.from_url(url, namespace=namespace) as locks,
            AsyncClient.from_url(url, namespace=namespace) as others,
        ):
            outcomes = set()
            for k in (*range(STEPS), TO_THE_END):
                hold = None if waits == "free" else await make(others, "x").acquire()
                task = asyncio.ensure_future(keep(make(locks, "x")))
                releasing = None
                if waits == "woken":
                    await asyncio.sleep(0.03)
                    releasing = asyncio.ensure_future(hold.release())
                elif hold is not None and k is TO_THE_END:
                    releasing = asyncio.ensure_future(hold.release())
                await after_steps(k, task)
                if releasing is not None:
                    await releasing
                elif hold is not None:
                    await hold.release()
                if not task.cancelled():
                    await task.result().release()
                outcomes.add(task.cancelled())
                await gone(others)
            assert outcomes == {True, False}

    asyncio.run(body())
    assert_clean(redis_server, layout, namespace)


@both
@every_lock
def test_waiters_survive_the_end_of_all_connections(redis_server, namespace, harness, lock):
    """Waiters and holders reconnect by themselves; no wake-up is lost."""
    layout, _, make = LOCKS[lock]

    async def body(harness):
        with FaultProxy(redis_server.port) as proxy:
            url = url_of(f"redis://127.0.0.1:{proxy.port}", layout)
            async with (
                harness.client(url, namespace=namespace) as locks,
                harness.client(url, namespace=namespace) as other,
            ):
                for _ in range(3):
                    hold = await make(locks, "x").acquire(timeout=5)
                    waiter = harness.spawn(lambda: make(other, "x").acquire(timeout=20))
                    await harness.sleep(0.2)
                    proxy.cut()
                    await harness.sleep(0.5)
                    start = harness.now()
                    await hold.release()
                    got = await waiter.result()
                    assert got is not None
                    assert harness.now() - start < 2.0
                    await got.release()

    harness.run(body)
    assert_clean(redis_server, layout, namespace)


@both
@every_lock
def test_a_token_is_remembered_until_the_servers_clock_has_passed_it(redis_server, namespace, harness, lock):
    """The clock was set back by a day during a hold, so the keys live so much longer: no step may shorten that."""
    layout, _, make = LOCKS[lock]

    async def body(harness):
        async with harness.client(url_of(redis_server.url, layout), namespace=namespace) as locks:
            hold = await make(locks, "x", lease=9.0).acquire(timeout=1)
            side = next(key for key in redis_server.command("KEYS", f"*{namespace}:*") if key.endswith("}:side"))
            ahead = time.time_ns() // 1000 + DAY_MS * 1000
            redis_server.command("HSET", side, "f", str(ahead))
            redis_server.command("PEXPIRE", side, str(redis_server.command("PTTL", side) + DAY_MS))
            for does in ("renew", "release", "acquire", "renew", "release"):
                if does == "acquire":
                    hold = await make(locks, "x", lease=9.0).acquire(timeout=1)
                    assert hold.token > ahead
                else:
                    await getattr(hold, does)()
                left, highest = redis_server.command("PTTL", side), int(redis_server.command("HGET", side, "f"))
                assert highest >= ahead
                assert time.time_ns() // 1000 + left * 1000 > highest, does

    harness.run(body)

"""Cancellation at any step leaves no ticket on the server, and does not mix up the replies of the shared connection."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from leasehold import AsyncClient
from leasehold._model import Change
from leasehold.stores.redis import keys
from support.steps import TO_THE_END, after_steps

STEPS = 40
"""More steps of the loop than an acquire, a wait and a release take."""


def left(server, namespace, name):
    """Return the holder's ticket and the number of waiters on the server."""
    lock, queue, beat, waiters = keys.mutex_keys(namespace, name)
    ticket = server.command("HGET", lock, "t")
    return ticket, [server.command("ZCARD", queue), server.command("ZCARD", beat), server.command("HLEN", waiters)]


async def gone(server, namespace, name, limit=2.0):
    end = asyncio.get_running_loop().time() + limit
    while left(server, namespace, name) != (None, [0, 0, 0]):
        assert asyncio.get_running_loop().time() < end, left(server, namespace, name)
        await asyncio.sleep(0.005)


async def waiting(server, namespace, count):
    while left(server, namespace, "x")[1][0] != count:  # noqa: ASYNC110 - it is the server that says so
        await asyncio.sleep(0.002)


async def keep(lock):
    """Acquire; a cancelled acquire leaves no hold."""
    return await lock.acquire()


@pytest.mark.parametrize("cold", [True, False], ids=["while connecting", "connected"])
def test_cancel_a_free_acquire_at_each_step(redis_server, namespace, cold):
    async def body():
        locks = AsyncClient.from_url(redis_server.url, namespace=namespace)
        outcomes = set()
        for k in (*range(STEPS), TO_THE_END):
            if cold:
                await locks.close()
                locks = AsyncClient.from_url(redis_server.url, namespace=namespace)
            else:
                await locks.lock("warm").acquire(blocking=False)
            task = asyncio.ensure_future(keep(locks.lock("x")))
            await after_steps(k, task)
            if not task.cancelled():
                await task.result().release()
            outcomes.add(task.cancelled())
            await gone(redis_server, namespace, "x")
        assert outcomes == {True, False}
        await locks.close()

    asyncio.run(body())


@pytest.mark.parametrize("hand_over", [False, True], ids=["queued", "during the hand-over"])
@pytest.mark.parametrize("fair", [False, True], ids=["", "fair"])
def test_cancel_a_waiter_at_each_step(redis_server, namespace, hand_over, fair):
    async def body():
        async with (
            AsyncClient.from_url(redis_server.url, namespace=namespace) as locks,
            AsyncClient.from_url(redis_server.url, namespace=namespace) as others,
        ):
            for k in range(STEPS):
                hold = await others.lock("x").acquire()
                task = asyncio.ensure_future(keep(locks.lock("x", fair=fair)))
                if hand_over:
                    await waiting(redis_server, namespace, 1)
                    await asyncio.sleep(0.01)
                    release = asyncio.ensure_future(hold.release())
                    await after_steps(k, task)
                    await release
                else:
                    await after_steps(k, task)
                    await hold.release()
                if not task.cancelled():
                    await task.result().release()
                await gone(redis_server, namespace, "x")

    asyncio.run(body())


@pytest.mark.parametrize("waiters", [0, 2])
def test_cancel_a_release_at_each_step(redis_server, namespace, waiters):
    async def body():
        async with AsyncClient.from_url(redis_server.url, namespace=namespace) as locks:

            async def take():
                async with locks.lock("x", timeout=2):
                    pass

            for k in range(1, STEPS // 2):  # a task that is cancelled before its first step does nothing at all
                hold = await locks.lock("x").acquire()
                tasks = [asyncio.ensure_future(take()) for _ in range(waiters)]
                await waiting(redis_server, namespace, waiters)
                await after_steps(k, asyncio.ensure_future(hold.release()))
                await asyncio.gather(*tasks)
                await gone(redis_server, namespace, "x", limit=0.5)  # and not only by the lease

    asyncio.run(body())


def test_random_cancellations_do_not_mix_up_replies(redis_server, namespace):
    """Each call reads its own value, so a misplaced reply would be another call's value."""
    chance, numbers = random.Random(20), itertools.count()

    async def body():
        async with AsyncClient.from_url(redis_server.url, namespace=namespace) as locks:
            store = locks.store
            for i in range(50):
                await store.compare_and_set(f"cell-{i}", Change(b"value-%d" % i))

            async def ask():
                i = next(numbers) % 50
                cell = await store.compare_and_set(f"cell-{i}", Change())
                assert cell.value == b"value-%d" % i
                return True

            async def lock():
                i = next(numbers) % 50
                async with locks.lock(f"lock-{i}", lease=2.0) as hold:
                    info = await locks.inspect(f"lock-{i}")
                    assert info is not None
                    assert [holder.token for holder in info.holders] == [hold.token]
                return True

            right = 0
            for _ in range(20):
                tasks = [asyncio.ensure_future(ask() if i % 2 else lock()) for i in range(300)]
                for _ in range(chance.randrange(6)):
                    await asyncio.sleep(0)
                for task in chance.sample(tasks, 150):
                    task.cancel()
                    if chance.random() < 0.1:
                        await asyncio.sleep(0)
                results = await asyncio.gather(*tasks, return_exceptions=True)
                wrong = [r for r in results if r is not True and not isinstance(r, asyncio.CancelledError)]
                assert wrong == []
                right += sum(r is True for r in results)
            assert right > 2_000
            assert await locks.holds() == []
            assert len(set(locks.store._transport._facts)) > 0

    asyncio.run(body())
    assert redis_server.command("CLIENT", "LIST").count("\n") <= 2

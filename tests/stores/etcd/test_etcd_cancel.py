"""Cancelled acquires, waits and releases on etcd leave nothing behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from leasehold import AsyncClient
from leasehold_lab.servers import EtcdServer
from support.steps import TO_THE_END, after_steps

STEPS = 60
"""More steps of the loop than an acquire, a wait and a release take."""


def pauses(k: int) -> tuple[float]:
    """Let a turn of the loop last, every other time, so long that the server may answer meanwhile."""
    return (0.0 if k % 2 else 0.0004,)


async def _take(lock) -> object:
    return await lock.acquire()


async def nothing_left(server: EtcdServer, namespace: str) -> None:
    until = time.monotonic() + 3.0
    while server.keys(f"leasehold/{namespace}/lock/x/"):
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["lock", "reader", "fixed"])
@pytest.mark.parametrize("cold", [True, False], ids=["while connecting", "connected"])
def test_cancel_a_free_acquire_at_each_step(etcd_server, namespace, cold, kind):
    async def body():
        locks = AsyncClient.from_url(etcd_server.url, namespace=namespace)
        outcomes = set()
        for k in (*range(STEPS // 2), TO_THE_END):
            if cold:
                await locks.close()
                locks = AsyncClient.from_url(etcd_server.url, namespace=namespace)
            else:
                await locks.lock("warm").acquire(blocking=False)
            lock = locks.rw_lock("x").reader() if kind == "reader" else locks.lock("x", renew=kind != "fixed")
            task = asyncio.ensure_future(_take(lock))
            await after_steps(k, task, pauses(k))
            if not task.cancelled():
                await task.result().release()
            outcomes.add(task.cancelled())
            await nothing_left(etcd_server, namespace)
        assert outcomes == {True, False}
        await locks.close()

    before = set(etcd_server.leases())
    asyncio.run(body())
    assert etcd_server.keys(f"leasehold/{namespace}/") == []
    assert set(etcd_server.leases()) <= before


@pytest.mark.parametrize("hand_over", [False, True], ids=["queued", "during the hand-over"])
@pytest.mark.parametrize("kind", ["lock", "writer"])
def test_cancel_a_waiter_at_each_step(etcd_server, namespace, hand_over, kind):
    async def body():
        async with (
            AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks,
            AsyncClient.from_url(etcd_server.url, namespace=namespace) as others,
        ):

            def make(client):
                return client.lock("x") if kind == "lock" else client.rw_lock("x").writer()

            for k in range(STEPS // 2):
                hold = await make(others).acquire()
                task = asyncio.ensure_future(_take(make(locks)))
                if hand_over:
                    while len(etcd_server.keys(f"leasehold/{namespace}/lock/x/")) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
                    await asyncio.sleep(0.01)
                    release = asyncio.ensure_future(hold.release())
                    await after_steps(k, task, pauses(k))
                    await release
                else:
                    await after_steps(k, task, pauses(k))
                    await hold.release()
                if not task.cancelled():
                    await task.result().release()
                await nothing_left(etcd_server, namespace)

    asyncio.run(body())
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_cancel_a_release_at_each_step(etcd_server, namespace):
    async def body():
        async with AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks:
            for k in range(1, STEPS // 3):
                hold = await locks.lock("x").acquire()
                await after_steps(k, asyncio.ensure_future(hold.release()), pauses(k))
                await nothing_left(etcd_server, namespace)

    asyncio.run(body())

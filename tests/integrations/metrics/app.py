"""A service with locks, which Prometheus scrapes: ``app.py URL PORT``. A line on its standard input releases a lock.

It has what each alert is about: a queue, slow acquires, timeouts; and, when its store is paused, doubts, late renewals,
losses and releases that are not confirmed.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from prometheus_client import CollectorRegistry, start_http_server

from leasehold import AcquireTimeout, AsyncClient, Client, LeaseholdError
from leasehold.observability.prometheus import PrometheusObserver

LEASE = 4.0
SLOW = 6.0  # seconds that an acquire takes: more than the alert allows
CROWD = 22  # waiters: more than the alert allows


async def held_for_ever(locks: AsyncClient, name: str) -> None:
    while True:
        try:
            async with locks.lock(name, lease=LEASE):
                await asyncio.Event().wait()
        except LeaseholdError:
            await asyncio.sleep(0.2)


async def in_vain(locks: AsyncClient) -> None:
    while True:
        try:
            async with locks.lock("queue:1", timeout=0.1):
                pass
        except (AcquireTimeout, LeaseholdError):
            await asyncio.sleep(0.1)


async def in_the_queue(locks: AsyncClient) -> None:
    while True:
        try:
            await locks.lock("queue:1", lease=600).acquire()
        except LeaseholdError:
            await asyncio.sleep(0.2)


async def slow_acquire(locks: AsyncClient) -> None:
    first = await locks.lock("slow:2", lease=60).acquire()
    second = asyncio.create_task(locks.lock("slow:2", lease=60).acquire())
    await asyncio.sleep(SLOW)
    assert first is not None
    await first.release()
    if (hold := await second) is not None:
        await hold.release()


async def release_when_told(locks: AsyncClient) -> None:
    hold = await locks.lock("told:3", lease=600).acquire()
    assert hold is not None
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("confirmed" if await hold.release() else "not confirmed", flush=True)


def blocking(url: str, observer: PrometheusObserver) -> None:
    with Client.from_url(url, observer=observer, response_timeout=0.5) as locks:
        while True:
            try:
                with locks.lock("stock:4", timeout=1):
                    threading.Event().wait(0.05)
            except LeaseholdError:
                threading.Event().wait(0.2)


async def main(url: str, port: int) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, names=["queue:*", "slow:*", "told:*", "stock:*"])
    start_http_server(port, "127.0.0.1", registry)
    threading.Thread(target=blocking, args=(url, observer), daemon=True).start()
    async with (
        AsyncClient.from_url(url, observer=observer, response_timeout=0.5) as holders,
        AsyncClient.from_url(url, observer=observer, response_timeout=0.5) as waiters,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(held_for_ever(holders, "queue:1"))
        group.create_task(held_for_ever(holders, "other-1"))
        group.create_task(slow_acquire(holders))
        group.create_task(release_when_told(holders))
        await asyncio.sleep(0.3)
        group.create_task(in_vain(waiters))
        for _ in range(CROWD):
            group.create_task(in_the_queue(waiters))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))

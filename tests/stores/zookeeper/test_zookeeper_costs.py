"""What locks on ZooKeeper cost: requests to the server, as documented, and none while a client waits."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient, Client
from leasehold._model import ReleaseReason
from leasehold.events import Event, Queued
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import ZooKeeperServer
from support.flavors import both
from support.patience import until_in
from support.stores.doc_pages import numbers, row

Make = Callable[[AsyncClient], Any]

PAIRS: dict[str, tuple[str, Make]] = {
    "lock": ("acquire, free", lambda locks: locks.lock("a")),
    "reader": ("a read-write lock, free", lambda locks: locks.rw_lock("a").reader()),
    "writer": ("a read-write lock, free", lambda locks: locks.rw_lock("a").writer()),
    "semaphore": ("a semaphore, free", lambda locks: locks.semaphore("a", 3).permits(1)),
}
"""What is acquired and released, and where the page says what the former costs."""


def received(server: ZooKeeperServer) -> int:
    return int(server.monitored()["zk_packets_received"])


async def requests_of(server: ZooKeeperServer, work: Callable[[], Awaitable[object]], times: int = 20) -> float:
    """Return how many requests a piece of work costs, once all is there and the server's time is known."""
    for _ in range(2):
        await work()
    before, own = received(server), -received(server) + received(server)  # what asking costs
    for _ in range(times):
        await work()
    return (received(server) - before - 2 * own) / times


@both
@pytest.mark.parametrize("what", list(PAIRS))
def test_an_acquire_and_a_release_cost_the_documented_requests(
    zookeeper_server: ZooKeeperServer, namespace: str, what: str, harness: Harness
) -> None:
    label, make = PAIRS[what]

    async def body(harness: Harness) -> None:
        locks = harness.client(f"{zookeeper_server.url}/cost?session_timeout=60", namespace=namespace)

        async def work() -> None:
            assert await (await make(locks).acquire(timeout=5)).release()

        spent = await requests_of(zookeeper_server, work)
        assert spent == pytest.approx(stated(label) + stated("release"), abs=0.3)

    harness.run(body)


@both
def test_a_hand_over_and_a_cell_cost_the_documented_requests(
    zookeeper_server: ZooKeeperServer, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        url = f"{zookeeper_server.url}/cost?session_timeout=60"
        to_error = list[Event]()
        one = harness.client(url, namespace=namespace)
        two = harness.client(url, namespace=namespace, observer=to_error.append)
        cell = one.versioned("cell")

        async def hand_over() -> None:
            hold = await one.lock("a").acquire(timeout=5)
            job = harness.spawn(lambda: two.lock("a").acquire(timeout=5))
            await until_in(harness, lambda: any(isinstance(event, Queued) for event in to_error))
            await harness.sleep(0.2)  # it watches: to look whether it does would be a request
            to_error.clear()
            assert hold is not None
            await hold.release()
            got = await job.result()
            assert got is not None
            await got.release()

        first, second, third = map(int, re.findall(r"\d", row("zookeeper", "acquire, taken, until it is held")[0])[:3])
        waited = first + second + third
        spent = await requests_of(zookeeper_server, hand_over, 5)
        assert spent == pytest.approx(stated("acquire, free") + waited + 2 * stated("release"), abs=0.3)
        read, write = map(int, re.findall(r"\d", row("zookeeper", "a cell: read, write")[0])[:2])
        assert await requests_of(zookeeper_server, cell.get) == pytest.approx(read, abs=0.3)
        assert await requests_of(zookeeper_server, lambda: cell.put(b"x")) == pytest.approx(write, abs=0.3)

    harness.run(body)


def stated(label: str) -> int:
    """Return how many requests something costs, as the page says."""
    return numbers("zookeeper", label)[0]


def test_waiting_does_not_poll(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    """While ten wait for two seconds, hardly anything is asked but for renewals."""
    url = f"{zookeeper_server.url}/cost?session_timeout=60"
    with Client.from_url(url, namespace=namespace) as locks, locks.lock("a"):
        threads = [threading.Thread(target=lambda: locks.lock("a").acquire(timeout=4)) for _ in range(10)]
        for thread in threads:
            thread.start()
        while not ((info := locks.inspect("a")) and len(info.waiters) == 10):
            time.sleep(0.01)
        time.sleep(0.3)
        before = int(zookeeper_server.monitored()["zk_packets_received"])
        time.sleep(2.0)
        spent = int(zookeeper_server.monitored()["zk_packets_received"]) - before
        assert spent < 10
        for thread in threads:
            thread.join()


def test_a_late_release_of_an_unknown_ticket_is_harmless(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    async def main() -> None:
        async with AsyncClient.from_url(f"{zookeeper_server.url}/late", namespace=namespace) as client:
            hold = await client.lock("a").acquire()
            assert hold is not None
            ticket = hold._lease.ticket
            assert await hold.release() is True
            assert not await client.store.release("a", ticket, reason=ReleaseReason.RELEASE, within=5)

    asyncio.run(main())

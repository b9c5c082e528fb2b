"""Read-write locks and semaphores on etcd, where several enter at the same time."""

from __future__ import annotations

import asyncio
import time

from etcd_helpers import TXN, in_a_thread, url

from leasehold import AsyncClient, Client
from support.patience import until


def test_a_fair_waiter_does_not_enter_alongside_one_that_overtook_it_unseen(etcd_server, proxy, namespace):
    """A reader that may pass enters between the writer's look and its entering: the writer looks again."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as readers,
        Client.from_url(url(proxy), namespace=namespace) as writers,
    ):
        first = readers.rw_lock("x").reader().acquire()
        thread, got = in_a_thread(lambda: writers.rw_lock("x").writer().acquire(timeout=30))
        until(lambda: len(readers.inspect("x").waiters) == 1, 5.0)
        time.sleep(0.2)
        late = proxy.hold(where=TXN, nth=2)  # it looks, and enters
        first.release()
        assert late.wait(5)
        passing = readers.rw_lock("x", fair=False).reader().acquire(blocking=False)
        assert passing is not None
        late.remove()
        time.sleep(0.3)
        assert got == []
        passing.raise_if_lost()
        passing.release()
        thread.join()
        assert got[0].token > passing.token
        got[0].release()
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_a_hundred_readers_and_permits_at_the_same_moment(etcd_server, namespace):
    """Each enters by three requests, however many others do."""

    async def body(make):
        clients = [AsyncClient.from_url(etcd_server.url, namespace=namespace) for _ in range(10)]
        for client in clients:
            await client.lock("warm").acquire(blocking=False)
        before = etcd_server.calls()["Txn"]
        holds = await asyncio.gather(*(make(clients[number % 10]) for number in range(100)))
        assert etcd_server.calls()["Txn"] - before <= 300
        assert len({hold.token for hold in holds}) == 100
        await asyncio.gather(*(hold.release() for hold in holds))
        for client in clients:
            await client.close()

    asyncio.run(body(lambda client: client.rw_lock("rw").reader().acquire(timeout=30)))
    asyncio.run(body(lambda client: client.semaphore("s", 100).acquire(timeout=30)))
    assert etcd_server.keys(f"leasehold/{namespace}/") == []

"""The requests that each operation of the etcd store costs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
from etcd_helpers import calls_of, url

from leasehold import AsyncClient, Client
from leasehold.stores.etcd.renewing import PER_REMOVAL
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import EtcdServer
from support.flavors import both
from support.patience import until
from support.stores.doc_pages import numbers


def stated(label: str) -> int:
    """Return how many requests something costs, as the page says."""
    return numbers("etcd", label)[0]


@both
@pytest.mark.parametrize("kind", ["lock", "rlock", "writer", "permit"])
def test_an_acquire_is_one_request_and_a_release_is_one(etcd_server, namespace, kind, harness):
    async def body(harness):
        locks = harness.client(etcd_server.url, namespace=namespace)
        make = {
            "lock": lambda: locks.lock("x"),
            "rlock": lambda: locks.rlock("x"),
            "writer": lambda: locks.rw_lock("x").writer(),
            "permit": lambda: locks.semaphore("x", 3).permits(2),
        }[kind]
        await (await make().acquire(timeout=5)).release()
        before = etcd_server.calls()
        for _ in range(10):
            await (await make().acquire(timeout=5)).release()
        assert calls_of(etcd_server, before) == {"Txn": 10 * (stated("acquire, free") + stated("release"))}

    harness.run(body)


@both
def test_a_reader_alongside_others_and_a_cell_cost_the_documented_requests(etcd_server, namespace, harness):
    async def body(harness):
        locks, others = (harness.client(etcd_server.url, namespace=namespace) for _ in range(2))
        await (await locks.lock("warm").acquire(timeout=5)).release()
        first = await others.rw_lock("x").reader().acquire(timeout=5)
        cell = locks.versioned("cell")
        await cell.put(1)
        before = etcd_server.calls()
        second = await locks.rw_lock("x").reader().acquire(timeout=5)
        assert calls_of(etcd_server, before) == {"Txn": stated("acquire of a reader or of permits alongside others")}
        before = etcd_server.calls()
        await cell.get()
        assert sum(calls_of(etcd_server, before).values()) == stated("cell: read")
        before = etcd_server.calls()
        await cell.put(2)
        assert sum(calls_of(etcd_server, before).values()) == stated("cell: write")
        for hold in (first, second):
            await hold.release()

    harness.run(body)


def test_the_first_acquire_of_a_client_also_gets_a_lease(etcd_server, namespace):
    before = etcd_server.calls()
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("x"), locks.lock("y"):
        pass
    assert calls_of(etcd_server, before) == {"LeaseGrant": 1, "Txn": 4, "LeaseRevoke": 1}


def test_a_hand_over_is_one_more_request_and_waiting_is_none(etcd_server, namespace):
    """However long it waits, as long as nothing is to be renewed."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(etcd_server.url, namespace=namespace) as two,
    ):
        for locks in (one, two):
            with locks.lock("warm"):
                pass
        hold = one.lock("x").acquire()
        before = etcd_server.calls()
        waiter = threading.Thread(target=lambda: two.lock("x").acquire().release())
        waiter.start()
        time.sleep(2.0)
        assert calls_of(etcd_server, before) == {"Txn": 1, "Watch": 1}
        hold.release()
        waiter.join()
        assert calls_of(etcd_server, before) == {"Txn": 4, "Watch": 1}


def test_a_release_wakes_one_of_many(etcd_server, namespace):
    """Ten wait in turn; each is woken by the release of the one before it only, and sends one request."""
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold, waiters = locks.lock("x").acquire(), []
        for number in range(10):
            waiters.append(threading.Thread(target=lambda: locks.lock("x").acquire().release()))
            waiters[-1].start()
            until(lambda n=number: len(etcd_server.keys(f"leasehold/{namespace}/")) == n + 2, 5.0)
        before = etcd_server.calls()
        hold.release()
        for waiter in waiters:
            waiter.join()
        assert calls_of(etcd_server, before) == {"Txn": 21}


def test_one_keep_alive_renews_all_tickets_of_a_length(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        start = time.monotonic()
        holds = [locks.lock(f"x{number}", lease=6.0).acquire() for number in range(30)]
        spread = time.monotonic() - start
        before = etcd_server.calls()
        time.sleep(2.5)
        sent = calls_of(etcd_server, before)
        assert sent["LeaseKeepAlive"] <= 1 + spread / 0.2 + 1  # due within 0.2 s: together
        assert sent["Txn"] == sent["LeaseKeepAlive"]
        for hold in holds:
            hold.release()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # in its first loop nobody closed it
def test_a_client_goes_on_in_another_loop_with_many_requests_and_few_connections(
    etcd_server: EtcdServer, namespace: str
) -> None:
    async def acquire_many() -> None:
        await asyncio.gather(*(acquire(f"x{number}") for number in range(40)))

    async def acquire(name: str) -> None:
        async with locks.lock(name, timeout=20):
            pass

    async def go_on() -> None:
        await acquire_many()
        before = proxy.connections
        for _ in range(5):
            await acquire("x")
        assert proxy.connections == before
        await locks.close()

    with FaultProxy(etcd_server.port) as proxy:
        locks = AsyncClient.from_url(url(proxy), namespace=namespace)
        asyncio.run(acquire_many())
        asyncio.run(go_on())
        gc.collect()


@both
def test_the_keys_of_many_failed_acquires_are_removed_with_one_request(etcd_server, namespace, harness):
    """Each with its mark, a count of guarded writes and a tombstone: as many as fit into a transaction of etcd."""

    async def body(harness):
        client = harness.client(etcd_server.url, namespace=namespace)
        for number in range(PER_REMOVAL):
            await client.rw_lock(f"x-{number}").reader().acquire(timeout=5)
        store = client.store
        states = list(store._states.values())
        for state in states:
            state.unknown = True  # as if a request had no response
            state.guard(store._runtime)
        before = etcd_server.calls()
        assert await store._renewals.remove_keys(states, store._runtime.now() + 5) == {}
        assert calls_of(etcd_server, before) == {"Txn": stated("key that a failed release left behind")}
        assert etcd_server.keys(f"leasehold/{namespace}/lock/") == []
        assert len(etcd_server.keys(f"leasehold/{namespace}/grave/")) == PER_REMOVAL

    harness.run(body)

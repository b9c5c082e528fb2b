"""The two transports in isolation and under the store:

connections closed unnoticed, choice of the reader, close.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest

from leasehold import AsyncClient, Client
from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, Wait
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores import registry
from leasehold.stores._common.slots import Slot, Slots
from leasehold_lab.proxy.proxy import FaultProxy, Side
from support.flavors import both


def in_threads(count, work):
    """Run ``work(i)`` in so many threads; return the results or raise the first error."""
    results, errors = [None] * count, []

    def run(i):
        try:
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def fill_the_pool(locks, count):
    """Make so many idle connections."""
    barrier = threading.Barrier(count)

    def work(i):
        hold = locks.lock(f"pool-{i}").acquire()
        barrier.wait()
        hold.release()

    in_threads(count, work)


def test_idle_connections_closed_by_the_server_cost_no_attempts(redis_server, namespace):
    """Thirty stale connections, tried one after the other with growing pauses, would take too long."""
    with Client.from_url(redis_server.url, namespace=namespace) as locks:
        fill_the_pool(locks, 30)
        redis_server.command("CLIENT", "KILL", "TYPE", "normal")
        start = time.monotonic()
        hold = locks.lock("x").acquire()
        assert hold.release()
        assert time.monotonic() - start < 0.5


def test_idle_connections_that_hang_cost_one_attempt(redis_server, namespace):
    """A firewall that dropped all connections sends nothing: after the first timeout all others are closed."""
    with FaultProxy(redis_server.port) as proxy:
        locks = Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=0.4)
        fill_the_pool(locks, 8)
        proxy.blackhole()
        with pytest.raises(StoreUnavailable):
            locks.lock("x").acquire(blocking=False)
        proxy.heal()
        start = time.monotonic()
        with locks.lock("x"):
            assert time.monotonic() - start < 0.3
        locks.close()


def test_two_hundred_threads_at_once(redis_server, namespace):
    with Client.from_url(redis_server.url, namespace=namespace) as locks:

        def work(i):
            for turn in range(3):
                with locks.lock(f"lock-{i}-{turn}"):
                    pass
            return True

        assert all(in_threads(200, work))


def test_a_closed_client_has_no_connection(redis_server, namespace):
    """A renewal under way while the client closes must not put its connection back, nor open another."""
    locks = Client.from_url(redis_server.url, namespace=namespace)
    transport = locks.store._transport
    fill_the_pool(locks, 4)
    locks.close()
    assert transport._idle == []
    with pytest.raises(StoreUnavailable, match="closed"):
        finish(transport.call(b"*1\r\n$4\r\nPING\r\n", within=1.0))
    with pytest.raises(StoreUnavailable, match="closed"):
        finish(transport.listen(1.0))


def test_a_closed_asyncio_client_has_no_connection(redis_server, namespace):
    async def body():
        locks = AsyncClient.from_url(redis_server.url, namespace=namespace)
        async with locks.lock("x"):
            pass
        await locks.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await locks.store._transport.call(b"*1\r\n$4\r\nPING\r\n", within=1.0)

    asyncio.run(body())


# --- the reader ------------------------------------------------------------------------------------------------


def test_close_during_a_connect_ends_connection_and_task():
    """The server accepts connections, and never replies."""

    async def body(server: socket.socket) -> None:
        locks = AsyncClient.from_url(f"redis://127.0.0.1:{server.getsockname()[1]}")
        trying = asyncio.create_task(locks.inspect("x"))
        taken, _ = await asyncio.get_running_loop().sock_accept(server)
        with taken:
            assert await asyncio.get_running_loop().sock_recv(taken, 100), "it says who it is"
            transport = locks.store._transport
            connecting = transport._connecting
            await transport.close()
            assert connecting.done(), (
                "the connection is closed when close has returned, not some turns of the loop later"
            )
            taken.settimeout(5.0)
            while await asyncio.to_thread(taken.recv, 4096):
                pass  # up to its end
        with pytest.raises(StoreUnavailable, match="closed"):
            await trying
        await locks.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        asyncio.run(body(server))


def test_a_waiter_without_a_subscription_leaves_no_entry(redis_server):
    """The next reader is chosen among the waiters: an absent one would never pass the reading on."""
    runtime = BlockingRuntime()
    store = registry.opener(redis_server.url).open(runtime, "second")
    channel = store._transport._subscription
    finish(channel.receive(Slot("x", "nobody"), 0.1))
    assert channel._waiting == {}
    finish(store.close())


def test_a_late_waiter_does_not_wait_for_another_threads_subscription(redis_server, namespace):
    """One thread is stuck subscribing; the others keep their own timeouts."""
    with FaultProxy(redis_server.port) as proxy:
        locks = Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace)
        hold = locks.lock("x").acquire()
        held = proxy.hold(where=b"SUBSCRIBE")

        def work(i):
            start = time.monotonic()
            assert locks.lock("x").acquire(timeout=0.3) is None
            return time.monotonic() - start

        assert max(in_threads(6, work)) < 1.0
        held.remove()
        hold.release()
        locks.close()


def test_slots_are_used_by_many_threads_at_once():
    slots, terms = Slots(BlockingRuntime()), LeaseTerms(LockMode(), Owner("host", 1, "x"), 1.0)

    def work(i):
        for turn in range(400):
            slot = slots.add("x", Ticket(f"{i}-{turn}", terms))
            slots.enlist(slot)
            slots.remove(slot.ticket)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(8, work)
    finally:
        sys.setswitchinterval(before)
    assert list(slots) == []
    assert not slots._by_name


@pytest.mark.parametrize("side", list(Side))
def test_a_refused_acquire_leaves_no_slot(redis_server, namespace, side):
    """A ticket unknown to the server is never released, and the next waiter must watch the holder itself."""
    with FaultProxy(redis_server.port) as proxy:
        locks = Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=0.3)
        proxy.stop()
        with pytest.raises(StoreUnavailable):
            locks.lock("x").acquire(timeout=1)
        assert list(locks.store._waiters) == []
        proxy.start()
        cut = proxy.cut_at(0, side)
        with pytest.raises(StoreUnavailable):
            locks.lock("x").acquire(timeout=1)
        cut.remove()
        assert list(locks.store._waiters) == []
        locks.close()


# --- fair order from the first moment --------------------------------------------------------------------------


def test_a_waiter_that_has_not_subscribed_yet_keeps_its_turn(redis_server, namespace):
    """It is first in the queue, and alive: it is still subscribing when the holder releases."""
    with FaultProxy(redis_server.port) as proxy:
        first = Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace)
        second = Client.from_url(redis_server.url, namespace=namespace)
        hold = second.lock("x").acquire()
        held, order = proxy.hold(where=b"SUBSCRIBE"), []

        def wait(locks, who):
            with locks.lock("x", fair=True):
                order.append(who)

        threads = [threading.Thread(target=wait, args=(first, "first"))]
        threads[0].start()
        assert held.wait(5)
        threads.append(threading.Thread(target=wait, args=(second, "second")))
        threads[1].start()
        while len(second.inspect("x").waiters) < 2:
            time.sleep(0.01)
        time.sleep(0.1)  # the second has subscribed by now
        hold.release()
        time.sleep(0.1)
        held.remove()
        for thread in threads:
            thread.join()
        assert order == ["first", "second"]
        first.close()
        second.close()


# --- asyncio ---------------------------------------------------------------------------------------------------


def test_a_short_timeout_does_not_break_the_shared_connection(redis_server, namespace):
    async def body(port):
        locks = AsyncClient.from_url(f"redis://127.0.0.1:{port}", namespace=namespace)
        store = locks.store
        terms = LeaseTerms(LockMode(), Owner("host", 1, "x"), 5.0)
        hurried = asyncio.ensure_future(store.try_acquire("x", Ticket("hurried", terms), join=False, within=0.02))
        await asyncio.sleep(0)
        patient = await store.try_acquire("y", Ticket("patient", terms), join=False, within=2.0)
        with pytest.raises(StoreUnavailable):
            await hurried
        assert not isinstance(patient, Wait)
        await locks.close()

    with FaultProxy(redis_server.port) as proxy:
        proxy.delay(0.05, Side.REQUESTS)
        asyncio.run(body(proxy.port))


def test_a_waiter_keeps_its_timeout_while_the_subscription_hangs(redis_server, namespace):
    async def body(port):
        locks = AsyncClient.from_url(f"redis://127.0.0.1:{port}", namespace=namespace)
        await locks.lock("x").acquire()
        start = time.monotonic()
        assert await locks.lock("x").acquire(timeout=0.3) is None
        assert time.monotonic() - start < 0.3 + 1.0 + 2.0  # at most a second to leave; the subscription would take 5
        await locks.close()

    with FaultProxy(redis_server.port) as proxy:
        proxy.drop(Side.REPLIES, where=b"subscribe")
        asyncio.run(body(proxy.port))


def test_close_during_a_subscribe_leaves_no_connection(redis_server, namespace, monkeypatch):
    """`close` waits for threads for a limited time only: one may still be about to subscribe."""
    with Client.from_url(redis_server.url, namespace=namespace) as locks:
        transport = locks.store._transport
        subscribed, connected, lines = transport._subscribed, threading.Event(), []

        async def slowly(within):
            lines.append(await subscribed(within))
            connected.set()
            time.sleep(0.3)  # noqa: ASYNC251 - it blocks its thread, as a slow server does
            return lines[0]

        monkeypatch.setattr(transport._subscription, "_subscribe", slowly)
        thread = threading.Thread(target=lambda: finish(transport.listen(2.0)))
        thread.start()
        assert connected.wait(5)
        finish(transport.close())
        thread.join()
        assert lines[0].socket.fileno() == -1


# --- names with several addresses ------------------------------------------------------------------------------


@both
def test_a_name_with_silent_addresses_costs_one_time_limit(monkeypatch, harness):
    """As a name with addresses of both families does, or one of a headless service, when the network is cut."""
    resolve, hosts = socket.getaddrinfo, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]

    def several(host, *rest, **more):
        found = hosts if host == "several.example" else [host]
        return [info for each in found for info in resolve(each, *rest, **more)]

    async def body(harness, port):
        locks = harness.client(f"redis://several.example:{port}", response_timeout=0.6)
        start = harness.now()
        with pytest.raises(StoreUnavailable):
            await locks.ping()
        assert harness.now() - start < 1.1

    monkeypatch.setattr(socket, "getaddrinfo", several)
    with ExitStack() as stack:
        port = 0
        for host in hosts:
            silent = stack.enter_context(socket.create_server((host, port), backlog=0))
            port = silent.getsockname()[1]
            for _ in range(4):
                fills = stack.enter_context(socket.socket())
                fills.setblocking(False)
                fills.connect_ex((host, port))
        harness.run(partial(body, port=port))

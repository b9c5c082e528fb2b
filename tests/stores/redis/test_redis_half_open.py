"""Subscriptions that are dead at the server's side only: a firewall has forgotten the connection.

The client sees neither an end nor an error. No message comes any more.
"""

from __future__ import annotations

import socket
import threading
import time

import pytest

from leasehold import Client
from leasehold._runtimes.base import Flavor, finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores._common.slots import Slot
from leasehold.stores.redis.connection.base import HELLO
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.channel import ANSWER_AFTER
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness
from support.flavors import both

LEASE = 2.4
NOISE = 0.4
FOUND_WITHIN = LEASE / 6 + ANSWER_AFTER
KINDS = {
    "lock": lambda locks, lease=LEASE: locks.lock("x", fair=True, lease=lease),
    "semaphore": lambda locks, lease=LEASE: locks.semaphore("x", 1, lease=lease),
    "redisson": lambda locks, lease=LEASE: locks.lock("x", lease=lease),
}


async def queued(harness, locks, count=1):
    while len((await locks.inspect("x")).waiters) < count:
        await harness.sleep(0.01)


def url(port, kind):
    return f"redis://127.0.0.1:{port}" + ("?layout=redisson" if kind == "redisson" else "")


async def warm(harness, others, locks, make):
    """Let a client wait once, so that it has subscribed."""
    hold = await make(others).acquire()
    waiter = harness.spawn(lambda: make(locks).acquire(timeout=8))
    await queued(harness, others)
    await harness.sleep(0.05)
    await hold.release()
    await (await waiter.result()).release()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@both
def test_a_waiter_notices_that_its_subscription_is_dead(redis_server, namespace, harness, kind, when):
    if when == "before" and isinstance(harness, AsyncioHarness):
        pytest.skip("asyncio claims on the connection of its subscription, and the claim shows that it is dead")

    async def body(harness):
        with FaultProxy(redis_server.port) as proxy:
            async with (
                harness.client(url(redis_server.port, kind), namespace=namespace) as others,
                harness.client(url(proxy.port, kind), namespace=namespace) as locks,
            ):
                await warm(harness, others, locks, KINDS[kind])
                hold = await KINDS[kind](others, 60).acquire()
                if when == "before":
                    assert proxy.sever(b"SUBSCRIBE") > 0
                waiter = harness.spawn(lambda: KINDS[kind](locks).acquire(timeout=8))
                await queued(harness, others)
                await harness.sleep(0.05)
                if when == "meanwhile":
                    assert proxy.sever(b"SUBSCRIBE") > 0
                released = harness.now()
                await hold.release()
                mine = await waiter.result()
                asyncio_takes = 2 * LEASE / 3  # its renewal must fail first
                assert harness.now() - released < NOISE + (
                    FOUND_WITHIN if isinstance(harness, BlockingHarness) else asyncio_takes
                )
                await mine.release()

    harness.run(body)


def test_a_dead_subscription_is_found_in_time_for_the_shortest_lease(redis_server, namespace):
    """The thread that reads has a long lease, and polls for seconds when the other one begins to wait."""

    def wait(name, lease):
        async def acquire():
            return locks.lock(name, lease=lease).acquire(timeout=20)

        waiter = BlockingHarness().spawn(acquire)
        while not others.inspect(name).waiters:
            time.sleep(0.01)
        return waiter

    with (
        FaultProxy(redis_server.port) as proxy,
        Client.from_url(redis_server.url, namespace=namespace) as others,
        Client.from_url(url(proxy.port, "lock"), namespace=namespace) as locks,
    ):
        with others.lock("long", lease=60):
            hold = others.lock("short", lease=60).acquire()
            long = wait("long", 60)
            time.sleep(0.2)  # it polls
            assert proxy.sever(b"SUBSCRIBE") > 0
            short = wait("short", LEASE)
            released = time.monotonic()
            hold.release()
            finish(short.result()).release()
            assert time.monotonic() - released < FOUND_WITHIN + NOISE
        finish(long.result()).release()


def test_latency_ends_no_subscription(redis_server, namespace):
    """The answer to the request takes longer than the silence before it."""
    with FaultProxy(redis_server.port) as proxy, Client.from_url(url(proxy.port, "lock"), namespace=namespace) as locks:
        with locks.lock("x", lease=60):
            proxy.delay(0.1)
            assert locks.lock("x", lease=1.0).acquire(timeout=4) is None
        assert proxy.count(b"SUBSCRIBE") == 1


def test_messages_and_replies_keep_a_subscription(redis_server, namespace):
    """A waiter whose connection is alive subscribes once, however long it waits."""
    with FaultProxy(redis_server.port) as proxy, Client.from_url(url(proxy.port, "lock"), namespace=namespace) as locks:
        with locks.lock("x", lease=60):
            proxy.forget()
            assert locks.lock("x", lease=1.2).acquire(timeout=2) is None
        assert proxy.count(b"SUBSCRIBE") == 1
        assert 5 <= proxy.count(HELLO) - proxy.connections <= 12  # a request after each sixth of the lease


def test_idle_connections_are_kept_alive(redis_server):
    """A firewall may forget those over which nothing has gone for some minutes."""
    made = registry.opener(redis_server.url).open(BlockingRuntime(), "idle")._settings.connection(Flavor.SYNC, 1.0)
    made.connect()
    with made._sock as connected:
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_a_wait_of_many_days_is_possible(redis_server):
    """poll takes milliseconds as a C int, so 24.8 days at most. A lease of 7 days lets a waiter sleep for 77."""
    runtime = BlockingRuntime()
    store = registry.opener(redis_server.url).open(runtime, "days")
    transport, slot = store.transport, Slot("x", "ticket")
    slot.lease = 7 * 86400.0
    finish(transport.listen(2.0))
    timer = threading.Timer(0.2, lambda: (slot.wake(), transport.notify(slot)))
    timer.start()
    finish(transport.receive(slot, 11 * slot.lease))
    timer.join()
    assert slot.news
    finish(store.close())


def test_an_end_of_a_subscription_is_no_message(redis_server, namespace):
    """A message of a sentinel that no thread has read announces a failover. The end of its connection does not."""
    silences = list[None]()
    settings = registry.opener(redis_server.url).open(BlockingRuntime(), namespace)._settings
    transport, ended = (
        BlockingTransport(
            BlockingRuntime(), settings, namespace.encode(), lambda message: None, lambda: silences.append(None)
        )
        for _ in range(2)
    )
    finish(transport.listen(2.0))
    assert not transport.has_unread()
    redis_server.command("PUBLISH", namespace, "failover")
    assert until(transport.has_unread)
    finish(transport.close())
    finish(ended.listen(2.0))
    redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
    assert until(lambda: ended.has_unread() or silences)
    assert (ended.has_unread(), ended.generation(), silences) == (False, 0, [None])
    finish(ended.close())


def until(condition):
    end = time.monotonic() + 5
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.001)
    return found

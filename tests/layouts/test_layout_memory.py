"""A server whose memory is full: what is held is renewed and released, and who gives up leaves the queue."""

from __future__ import annotations

import pytest
from layout_keys import BEFORE, LOCKS, SIGNAL, assert_clean, url_of

from leasehold import StoreUnavailable
from leasehold_lab.servers import RedisServer
from support.flavors import both
from support.patience import until_in


@pytest.fixture(scope="module")
def server(outlive):
    with RedisServer() as own:
        outlive.add(own.pid)
        yield own


@pytest.fixture
def full(server):
    """Return a function that fills the memory; it is free afterwards."""
    yield lambda: server.command("CONFIG", "SET", "maxmemory", "100kb")
    server.command("CONFIG", "SET", "maxmemory", "0")


@both
@pytest.mark.parametrize("lock", LOCKS)
def test_a_holder_renews_and_releases_and_a_waiter_gives_up(server, full, namespace, harness, lock):
    layout, _, make = LOCKS[lock]
    key = f"{BEFORE.get(layout, '')}{namespace}:x"

    async def body(harness):
        async with (
            harness.client(url_of(server.url, layout), namespace=namespace) as locks,
            harness.client(url_of(server.url, layout), namespace=namespace) as others,
        ):
            hold = await make(locks, "x", lease=0.6).acquire()
            waiters = [harness.spawn(lambda: make(others, "x").acquire(timeout=1.5)) for _ in range(2)]

            async def waiting():
                found = await locks.inspect("x")
                return len(found.waiters) == 2

            for _ in range(40):
                if await waiting():
                    break
                await harness.sleep(0.05)
            full()
            await harness.sleep(1.2)
            hold.raise_if_lost()
            await hold.release()
            if layout == "python-redis-lock":
                assert server.command("LLEN", f"{SIGNAL}{namespace}:x") == 1
            for waiter in waiters:
                with pytest.raises(StoreUnavailable):
                    await waiter.result()
            server.command("CONFIG", "SET", "maxmemory", "0")
            await until_in(harness, lambda: not server.command("EXISTS", f"leasehold:layout:{layout}:{{{key}}}:queue"))
            assert await make(locks, "x").acquire(timeout=0)

    harness.run(body)
    assert_clean(server, layout, namespace)


@both
@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.startswith("redisson")])
def test_a_waiter_that_polls_not_keeps_its_place(server, full, namespace, harness, lock):
    layout, _, make = LOCKS[lock]

    async def body(harness):
        async with harness.client(url_of(server.url, layout), namespace=namespace) as locks:
            hold = await make(locks, "x", lease=30).acquire()
            waiter = harness.spawn(lambda: make(locks, "x", lease=0.6).acquire(timeout=20))

            async def place():
                found = await locks.inspect("x")
                return [each.remaining > 0 for each in found.waiters]

            await until_in(harness, place)
            await harness.sleep(0.3)  # it claims again when it is subscribed
            full()
            await harness.sleep(1.5)
            assert await place() == [True]
            server.command("CONFIG", "SET", "maxmemory", "0")
            await hold.release()
            await (await waiter.result()).release()

    harness.run(body)
    assert_clean(server, layout, namespace)

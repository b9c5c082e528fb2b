"""Forks, close, many clients and many holds: a child releases nothing, connections are closed, one watchdog."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import traceback

import pytest

from leasehold import AsyncClient, Client
from leasehold.errors import LeaseLost
from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness
from leasehold_lab.servers import RedisServer
from support.flavors import both


@pytest.fixture
def server():
    with RedisServer() as running:
        yield running


def connections(server):
    """Count the connections of clients, without the one that asks."""
    return server.command("CLIENT", "LIST").count("\n") - 1


def in_child(work):
    """Run ``work`` in a forked child; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def waiting(locks, name, count, limit=5.0):
    end = time.monotonic() + limit
    while len(locks.inspect(name).waiters) != count:
        assert time.monotonic() < end
        time.sleep(0.01)


# --- fork ------------------------------------------------------------------------------------------------------


def test_fork_while_holding_and_waiting(server):
    """The child holds no lock, sends nothing on the parent's connections, and can use the client."""
    with Client.from_url(server.url) as locks:
        hold, got = locks.lock("x", lease=0.9).acquire(), []
        thread = threading.Thread(target=lambda: got.append(locks.lock("x").acquire(timeout=10)))
        thread.start()
        waiting(locks, "x", 1)

        def child():
            assert hold.lost
            try:
                hold.release()
                return 2
            except LeaseLost:
                pass
            assert locks.lock("x").acquire(timeout=0.2) is None
            with locks.lock("y") as mine:
                mine.raise_if_lost()
            time.sleep(0.5)  # a watchdog would pay now what it owed
            locks.close()
            return 0

        assert in_child(child) == 0
        hold.raise_if_lost()
        assert len(locks.inspect("x").waiters) == 1
        time.sleep(1.0)  # renewed by the parent
        hold.raise_if_lost()
        hold.release()
        thread.join()
        assert got[0].token > hold.token
        got[0].release()
        assert locks.holds() == []


def test_fork_of_an_asyncio_client(server):
    """The parent's subscription survives, whatever the child does with the inherited objects."""
    loop = asyncio.new_event_loop()
    locks = AsyncClient.from_url(server.url)
    hold = loop.run_until_complete(locks.lock("x", lease=6.0).acquire())

    async def use():
        async with AsyncClient.from_url(server.url) as others:  # a client belongs to its loop
            gc.collect()
            assert await others.lock("x").acquire(timeout=0.1) is None
            async with others.lock("y"):
                pass

    def child():
        nonlocal locks
        assert hold.lost
        locks = None
        asyncio.run(use())
        return 0

    assert in_child(child) == 0

    async def go_on():
        await asyncio.sleep(1.0)
        hold.raise_if_lost()
        waiter = asyncio.ensure_future(locks.lock("x").acquire(timeout=5))
        await asyncio.sleep(0.1)
        start = time.monotonic()
        await hold.release()
        got = await waiter
        assert time.monotonic() - start < 0.6  # the message was received: every timer would fire later
        await got.release()
        await locks.close()

    loop.run_until_complete(go_on())
    loop.close()


# --- closing ---------------------------------------------------------------------------------------------------


@both
def test_close_while_others_wait(server, harness):
    """Waiters get an error at once, and leave no queue entry on the server."""

    async def body(harness):
        async with harness.client(server.url) as others:
            hold = await others.lock("x").acquire()
            locks = harness.client(server.url)
            jobs = [harness.spawn(lambda: locks.lock("x").acquire()) for _ in range(5)]
            await harness.sleep(0.3)
            start = harness.now()
            await locks.close()
            for job in jobs:
                with pytest.raises(RuntimeError, match="closed"):
                    await job.result()
            assert harness.now() - start < 1.0
            info = await others.inspect("x")
            assert info.waiters == ()
            await hold.release()

    harness.run(body)
    assert connections(server) == 0


@both
def test_close_releases_locks_and_closes_connections(server, harness):
    async def body(harness):
        clients = [harness.client(server.url) for _ in range(20)]
        for i, locks in enumerate(clients):
            await locks.lock(f"name-{i}").acquire()
            await locks.lock(f"other-{i}").acquire()
        await harness.gather(*(locks.lock("shared").acquire(timeout=0.2) for locks in clients))
        for locks in clients:
            await locks.close()

    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    harness.run(body)
    end = time.monotonic() + 3
    while (len(os.listdir("/proc/self/fd")), threading.active_count()) > before or connections(server):
        assert time.monotonic() < end
        time.sleep(0.01)
    for key in server.command("KEYS", "*"):
        assert key.endswith(":lock")
        assert 0 < server.command("PTTL", key) <= 3_600_000 + 30_000
        assert server.command("HGET", key, "t") is None


# --- many ------------------------------------------------------------------------------------------------------


@both
def test_ten_thousand_holds_share_one_watchdog(server, harness):
    """Renewals are sent in scripts of a hundred tickets, by one thread or task, and one more for each pending batch."""
    count, lease = 10_000, 15.0

    async def body(harness):
        async with harness.client(server.url) as locks:
            holds = []
            for start in range(0, count, 500):
                if isinstance(harness, AsyncioHarness):
                    names = range(start, start + 500)
                    holds += await harness.gather(*(locks.lock(f"n{i}", lease=lease).acquire() for i in names))
                else:
                    holds += [await locks.lock(f"n{i}", lease=lease).acquire() for i in range(start, start + 500)]
            threads = [thread for thread in threading.enumerate() if thread.name == "leasehold-watchdog"]
            assert len(threads) == (1 if isinstance(harness, BlockingHarness) else 0)
            assert threading.active_count() < 40
            server.reset_stats()
            await harness.sleep(lease / 3 + 1.0)
            stats = server.commandstats()
            print(stats["evalsha"], "calls renewed", stats["pexpire"])
            assert stats["pexpire"] >= count  # each renewed at least once
            assert stats["evalsha"] <= stats["pexpire"] / 20  # in batches, if smaller ones than a hundred
            for hold in holds:
                hold.raise_if_lost()
            server.command("FLUSHALL")  # closing would take a while

    harness.run(body)


def test_every_key_of_a_contended_name_expires(server):
    with Client.from_url(server.url) as locks:
        hold = locks.lock("x").acquire()
        threads = [
            threading.Thread(target=lambda: locks.lock("x", fair=True, lock_delay=1).acquire(timeout=2).release())
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        waiting(locks, "x", 4)
        for key in keys.mutex_keys("default", "x"):
            assert 0 < server.command("PTTL", key) <= 3_600_000 + 31_000
        hold.release()
        for thread in threads:
            thread.join()
        assert server.command("KEYS", "*") == [keys.mutex_keys("default", "x")[0].decode()]

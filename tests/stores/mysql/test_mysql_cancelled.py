"""MySQL: calls that are cancelled at each step, drivers that lose a cancellation, killed holders and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest
from mysql_faults import NOISE, comes_true, transactions, waits_for_rows

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.stores.mysql.connection import aio as mysql_aio
from leasehold_lab.runtimes.harnesses import AsyncioHarness
from leasehold_lab.servers import MariaDBServer
from support.patience import until
from support.steps import TO_THE_END, after_steps

STEPS = 60
"""More steps of the loop than an acquire and a release take."""


@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["lease", "session"])
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_cancel_an_acquire_at_each_step(server: MariaDBServer, namespace: str, mode: str, taken: bool) -> None:
    before = set(server.sessions())

    async def body() -> None:
        outcomes: set[bool] = set()
        async with (
            AsyncClient.from_url(server.url + mode, namespace=namespace) as locks,
            AsyncClient.from_url(server.url + mode, namespace=namespace) as others,
        ):
            for k in (*range(STEPS), *(() if taken else (TO_THE_END,))):
                hold = await others.lock("x").acquire(timeout=5) if taken else None
                task = asyncio.ensure_future(locks.lock("x").acquire(timeout=5))
                await after_steps(k, task, pauses=(0.0004,))
                outcomes.add(task.cancelled())
                if not task.cancelled():
                    got = task.result()
                    assert got is not None
                    await got.release()
                if hold is not None:
                    assert await hold.release()
                info = await others.inspect("x")
                assert info is None, (k, info)
                mine = await locks.lock(f"probe {k}").acquire(timeout=5)  # no reply of another question
                assert mine is not None
                assert await mine.release()
        assert outcomes == ({True} if taken else {True, False})
        harness = AsyncioHarness()
        harness.runtime = locks._engine.runtime
        await comes_true(harness, lambda: transactions(server) == 0 and set(server.sessions()) <= before)

    asyncio.run(body())


@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["lease", "session"])
def test_a_cancellation_that_the_driver_loses_counts(
    server: MariaDBServer, namespace: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `asyncio.wait_for` before Python 3.12, in which drivers connect, does with one that comes with the result."""
    before, connect, waits = set(server.sessions()), mysql_aio.asyncmy.connect, asyncio.Event()

    async def deaf(**options: Any) -> Any:
        waits.set()
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            pass
        return await connect(**options)

    async def body() -> None:
        async with AsyncClient.from_url(server.url + mode, namespace=namespace) as locks:
            monkeypatch.setattr(mysql_aio.asyncmy, "connect", deaf)
            task = asyncio.ensure_future(locks.lock("x").acquire(timeout=5))
            await asyncio.wait_for(waits.wait(), 5)
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            monkeypatch.undo()
            hold = await locks.lock("x").acquire(timeout=5)
            assert hold is not None
            assert await hold.release()
        harness = AsyncioHarness()
        harness.runtime = locks._engine.runtime
        await comes_true(harness, lambda: set(server.sessions()) <= before)

    asyncio.run(body())


@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["lease", "session"])
@pytest.mark.parametrize("by", ["time", "cancellation"])
def test_a_driver_that_loses_a_cancellation_is_cancelled_again(
    server: MariaDBServer, namespace: str, mode: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is made just as time is up; the driver misses that, and waits for the server's first words."""
    waits = asyncio.Event()

    async def deaf(**options: Any) -> Any:
        waits.set()
        try:
            await asyncio.sleep(30.0)
        except asyncio.CancelledError:
            pass
        await asyncio.sleep(30.0)  # for a server that says nothing

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncClient.from_url(server.url + mode, namespace=namespace, response_timeout=0.5) as locks:
            monkeypatch.setattr(mysql_aio.asyncmy, "connect", deaf)
            began = loop.time()
            task = asyncio.ensure_future(locks.lock("x").acquire(timeout=10))
            if by == "cancellation":
                await asyncio.wait_for(waits.wait(), 5)
                task.cancel()
            await asyncio.wait((task,))
            assert loop.time() - began < 0.5 + NOISE
            assert task.cancelled() == (by == "cancellation")
            assert task.cancelled() or isinstance(task.exception(), StoreUnavailable)
            monkeypatch.undo()
            hold = await locks.lock("x").acquire(timeout=5)
            assert hold is not None
            assert await hold.release()

    asyncio.run(body())


CHILD = """
import sys, time
from leasehold import Client
locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
hold = locks.lock("x", lease=float(sys.argv[3])).acquire(timeout=5)
print(hold.token, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("mode", "lease", "bound"), [("", 1.0, 1.0 + 0.25), ("?mode=session", 30.0, 1.0)])
def test_the_lock_of_a_killed_holder_is_free_in_time(
    server: MariaDBServer, namespace: str, mode: str, lease: float, bound: float
) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-c", CHILD, server.url + mode, namespace, str(lease)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        token = int(child.stdout.readline())
        with Client.from_url(server.url + mode, namespace=namespace) as locks:
            threading.Timer(0.5, child.kill).start()
            start = time.monotonic()
            hold = locks.lock("x").acquire(timeout=20)
            assert hold is not None
            assert hold.token > token
            assert time.monotonic() - start < 0.5 + bound + NOISE
            hold.release()


@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["lease", "session"])
def test_a_fork_leaves_the_parents_connections_alone(server: MariaDBServer, namespace: str, mode: str) -> None:
    with Client.from_url(server.url + mode, namespace=namespace) as locks:
        hold = locks.lock("x", lease=30).acquire(timeout=5)
        assert hold is not None
        child = os.fork()
        if child == 0:
            try:
                taken = locks.lock("x").acquire(blocking=False) is None
                mine = locks.lock("y").acquire(timeout=5)
                ok = taken and mine is not None and mine.release()
                locks.close()
                os._exit(0 if ok else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        hold.renew()
        assert hold.release()


def test_a_fork_while_a_thread_reads_an_answer(server: MariaDBServer, namespace: str) -> None:
    """Python's lock of the buffer that the thread reads from stays locked in the child."""
    with Client.from_url(server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire(timeout=5)
        assert hold is not None
        other = server.connect()
        other.begin()
        other.cursor().execute("SELECT * FROM leasehold_name FOR UPDATE")  # until it ends, the release has no answer
        releasing = threading.Thread(target=hold.release)
        releasing.start()
        until(lambda: waits_for_rows(server))
        child = os.fork()
        if child == 0:
            try:
                locks.close()
                os._exit(0)
            finally:
                os._exit(2)
        try:
            until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        finally:
            other.rollback()
            other.close()
            releasing.join()

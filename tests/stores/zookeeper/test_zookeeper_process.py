"""ZooKeeper and processes: holders that are killed or stopped, forks, exits, cancellation, and threads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost
from leasehold_lab.servers import ZooKeeperServer
from leasehold_lab.servers.zookeeper import TICK
from support.programs.zookeeper_client import children

SESSION = 1.5
BOUND = SESSION + TICK
"""Seconds after its death within which a holder's lock is free: the session timeout, rounded up to a tick."""

NOISE = 1.0

HOLD = """
    import sys, time
    from leasehold import Client, LeaseLost
    locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
    hold = locks.lock("a").acquire()
    told = []
    hold.on_lost(lambda error: told.append(time.monotonic()))
    print("held", hold.token, flush=True)
    sys.stdin.readline()
    try:
        hold.raise_if_lost()
    except LeaseLost:
        print("lost", flush=True)
    else:
        print("still held", flush=True)
    locks.close()
"""


@contextmanager
def holder(url: str, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the lock ``a``, and looks at its hold when it is sent a line."""
    command = [sys.executable, "-c", textwrap.dedent(HOLD), url, namespace]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("held")
            yield process
        finally:
            process.kill()


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer) -> str:
    return f"{zookeeper_server.url}/process?session_timeout={SESSION}"


def test_a_lock_whose_holder_is_killed_is_free_within_the_bound(url: str, namespace: str) -> None:
    with Client.from_url(url, namespace=namespace) as locks, holder(url, namespace) as process:
        taken: list[float] = []

        def wait() -> None:
            with locks.lock("a"):
                taken.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not ((info := locks.inspect("a")) and info.waiters):
            time.sleep(0.01)
        process.kill()
        start = time.monotonic()
        waiter.join(30)
        assert taken[0] - start < BOUND + NOISE


def test_a_stopped_holder_is_notified_before_any_call_succeeds(url: str, namespace: str) -> None:
    """It continues after another client held the lock: its first check reports the loss."""
    with Client.from_url(url, namespace=namespace) as locks, holder(url, namespace) as process:
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        hold = locks.lock("a").acquire(timeout=30)
        assert hold is not None
        assert time.monotonic() - start < BOUND + NOISE
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "lost\n"
        process.wait(20)
        hold.raise_if_lost()
        hold.release()


def test_the_end_of_the_interpreter_releases_at_once_and_logs_the_locks(
    url: str, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    code = """
        import sys
        from leasehold import Client
        locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
        hold = locks.lock("a").acquire()
    """
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(code), url, namespace]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert done.stderr.count("\n") == done.stderr.count("its client was closed") == 1, done.stderr
    assert children(zookeeper_server, f"/process/{namespace}/a") == []
    assert time.monotonic() - start < 10


def test_a_forked_child_leaves_the_parents_session_alone(
    url: str, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    with Client.from_url(url, namespace=namespace) as locks:
        hold = locks.lock("a").acquire()
        assert hold is not None
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(LeaseLost):
                    hold.raise_if_lost()
                assert locks.lock("a").acquire(timeout=0) is None
                with locks.lock("b"):
                    pass
                locks.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        time.sleep(SESSION * 0.8)
        hold.raise_if_lost()
        assert hold.release() is True


def test_threads_and_sessions_do_not_accumulate(url: str, namespace: str, zookeeper_server: ZooKeeperServer) -> None:
    before_all = set(threading.enumerate())  # other clients of this process live on

    def ours() -> int:
        new = set(threading.enumerate()) - before_all
        return sum(thread.name.startswith("leasehold-zookeeper") for thread in new)

    def all_end() -> None:
        until = time.monotonic() + 5
        while ours() and time.monotonic() < until:
            time.sleep(0.001)
        assert ours() == 0

    before = int(zookeeper_server.monitored()["zk_num_alive_connections"])
    for _ in range(5):
        with Client.from_url(url, namespace=namespace) as locks, locks.lock("a"):
            assert ours() <= 4, "three of the driver, and one that ends leases"
        all_end()
    assert int(zookeeper_server.monitored()["zk_num_alive_connections"]) <= before


# --- an event loop that does not go on -------------------------------------------------------------------------------

LEASE = 1.0


def gone_after_a_lease(server: ZooKeeperServer, path: str, there: int, within: float = LEASE + NOISE) -> None:
    """Wait, in a thread that may be that of an event loop, until the nodes that are there are gone."""
    start = time.monotonic()
    assert len(children(server, path)) == there
    while left := children(server, path):
        assert time.monotonic() - start < within, left
        time.sleep(0.05)


def test_what_an_event_loop_that_is_stuck_holds_is_free_after_its_lease(
    zookeeper_server: ZooKeeperServer, namespace: str
) -> None:
    """The driver's threads keep the session alive meanwhile."""

    async def main() -> None:
        async with AsyncClient.from_url(f"{zookeeper_server.url}/stuck", namespace=namespace) as client:
            hold = await client.lock("a", lease=LEASE).acquire()
            waiting = asyncio.ensure_future(client.lock("a", lease=LEASE).acquire())
            fixed = await client.lock("b", lease=LEASE, renew=False).acquire()
            await asyncio.sleep(LEASE / 2)
            gone_after_a_lease(zookeeper_server, f"/stuck/{namespace}/a", 2)
            gone_after_a_lease(zookeeper_server, f"/stuck/{namespace}/b", 1 if fixed is not None and fixed.held else 0)
            assert hold is not None
            assert not hold.held
            again = await asyncio.wait_for(waiting, 5)  # it joins the queue again
            assert again is not None
            assert await again.release()

    asyncio.run(main())


def test_what_a_closed_event_loop_held_is_free_after_its_lease(
    zookeeper_server: ZooKeeperServer, namespace: str
) -> None:
    client = AsyncClient.from_url(f"{zookeeper_server.url}/closed-loop", namespace=namespace)

    async def main() -> AsyncHold | None:
        return await client.lock("a", lease=LEASE).acquire()

    hold = asyncio.run(main())
    gone_after_a_lease(zookeeper_server, f"/closed-loop/{namespace}/a", 1)
    assert hold is not None
    assert not hold.held
    asyncio.run(client.close())


def test_a_node_made_by_an_acquire_in_which_the_event_loop_is_stuck_is_removed(
    zookeeper_server: ZooKeeperServer, namespace: str
) -> None:
    """Its reply is there, but nobody reads it. When the loop goes on, another ticket acquires."""
    url, seen = f"{zookeeper_server.url}/stuck", list[str]()

    def until_it_is_gone() -> None:
        gone_after_a_lease(zookeeper_server, f"/stuck/{namespace}/a", 1, 5.0)
        seen.append("gone")

    async def main() -> None:
        async with AsyncClient.from_url(url, namespace=namespace, response_timeout=1.0) as client:
            async with client.lock("a"):
                pass
            signals = client.store._transport._runtime  # type: ignore[attr-defined]
            make = signals.signal

            def stuck() -> object:
                signals.signal = make
                asyncio.get_running_loop().call_soon(until_it_is_gone)
                return make()

            signals.signal = stuck
            hold = await client.lock("a", lease=LEASE).acquire(timeout=10)
            assert seen == ["gone"]
            assert hold is not None
            await asyncio.sleep(LEASE * 1.5)
            assert len(children(zookeeper_server, f"/stuck/{namespace}/a")) == 1
            hold.raise_if_lost()
            assert await hold.release()

    asyncio.run(main())


# --- cancellation --------------------------------------------------------------------------------------------------

Operation = Callable[[AsyncClient], Awaitable[object]]


async def lock(client: AsyncClient) -> None:
    async with client.lock("a"):
        await asyncio.sleep(0)


async def write(client: AsyncClient) -> None:
    async with client.rw_lock("a").writer():
        await asyncio.sleep(0)


async def upgrade(client: AsyncClient) -> None:
    async with client.rw_lock("a").upgradeable() as hold:
        writing = await hold.upgrade()
        assert writing is not None
        await writing.release()


async def permits(client: AsyncClient) -> None:
    async with client.semaphore("a", 3).permits(2):
        await asyncio.sleep(0)


@pytest.mark.parametrize("operation", [lock, write, upgrade, permits], ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_cancelling_at_any_time_leaves_no_node(
    zookeeper_server: ZooKeeperServer, namespace: str, operation: Operation, taken: bool
) -> None:
    """Cancelled later and later, by turns of the loop and fractions of a millisecond, until it ends by itself."""

    async def main() -> None:
        url = f"{zookeeper_server.url}/cancel"
        async with (
            AsyncClient.from_url(url, namespace=namespace) as client,
            AsyncClient.from_url(url, namespace=namespace) as other,
        ):
            await operation(other)  # the nodes on the way are there
            await client.versioned("connected").get()
            turns, finished = 0, False
            while not finished:
                hold = await _take(other, operation) if taken else None
                task = asyncio.ensure_future(operation(client))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await asyncio.sleep(turns * 0.0002)
                finished = task.done() or (taken and turns == 60)
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    task.result()
                if hold is not None:
                    await hold.release()
                info = await other.inspect("a")
                assert info is None, f"cancelled after {turns} turns: {info}"
                turns += 1

    asyncio.run(main())


async def _take(client: AsyncClient, operation: Operation) -> AsyncHold | None:
    if operation is permits:
        return await client.semaphore("a", 3).permits(3).acquire()
    return await (client.lock("a") if operation is lock else client.rw_lock("a").writer()).acquire()

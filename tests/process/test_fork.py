"""A fork while locks are held: the child neither renews nor releases what is its parent's, and can lock by itself."""

import asyncio
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from leasehold import AsyncClient, Client, LeaseLost
from leasehold._engine.engine import Engine
from leasehold._runtimes import process
from leasehold._runtimes.base import Runtime, run_sync
from leasehold.stores.memory import Memory, MemoryStore
from leasehold_lab.faulty_store import Call, Fault, Faulty

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(body: Callable[[], object], within: float = 10.0) -> None:
    """Run ``body`` in a forked child, which must end by itself; raise what it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode()[:60_000])
        finally:
            os._exit(code)
    os.close(write)
    until = time.monotonic() + within
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    said = b""
    while chunk := os.read(read, 65536):
        said += chunk
    os.close(read)
    assert status == 0, said.decode()


class Counted:
    """A plan that fails nothing and counts by process."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []

    def __call__(self, call: Call) -> Fault | None:
        self.calls.append((os.getpid(), call.method))
        return None

    def mine(self) -> list[str]:
        return [method for pid, method in self.calls if pid == os.getpid()]


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_the_child_sends_nothing_for_what_its_parent_holds(kind: str) -> None:
    counted = Counted()
    with Client(Faulty(Memory(f"fork-{kind}"), counted)) as client:
        lock = getattr(client, kind)("a", lease=0.6)
        with lock as hold:

            def child() -> None:
                assert hold.lost
                assert hold.remaining == 0.0
                for call in (hold.raise_if_lost, hold.renew, hold.release):
                    with pytest.raises(LeaseLost, match="forked"):
                        call()
                time.sleep(1.0)  # long enough for renewals
                client.close()
                assert counted.mine() == [], "not a word to the store"

            in_child(child)
            hold.raise_if_lost()
            assert hold.remaining > 0.1
        assert not lock.locked()


def test_the_childs_end_of_the_block_leaves_the_parents_hold_alone() -> None:
    counted = Counted()
    with Client(Faulty(Memory("fork-block"), counted)) as client:
        lock = client.lock("a", lease=5.0)
        hold = lock.__enter__()

        def child() -> None:
            with pytest.raises(LeaseLost):
                lock.__exit__(None, None, None)
            assert "release" not in counted.mine()

        in_child(child)
        hold.raise_if_lost()
        lock.__exit__(None, None, None)


def test_the_child_can_lock_by_itself_with_the_same_client() -> None:
    with Client(Memory("fork-own")) as client, client.lock("a", lease=5.0):
        mine = client.owner

        def child() -> None:
            assert client.owner != mine
            with client.rlock("b", lease=0.5) as hold, client.rlock("b"):
                time.sleep(1.0)  # its own watchdog renews
                hold.raise_if_lost()
            assert client.inspect("b") is None

        in_child(child)


def test_two_clients_of_one_space_share_it_in_the_child_too() -> None:
    one, two = Client(Memory("fork-two")), Client(Memory("fork-two"))

    def child() -> None:
        with one.lock("a"):
            assert two.lock("a").acquire(blocking=False) is None

    in_child(child)
    one.close()
    two.close()


@pytest.mark.parametrize("drop_dead", [False, True])
def test_a_child_that_leaves_a_barrier_by_an_error_says_nothing_for_its_parent(*, drop_dead: bool) -> None:
    counted = Counted()
    with Client(Faulty(Memory("fork-barrier"), counted)) as client:
        barrier = client.barrier(f"b{drop_dead}", 1, drop_dead=drop_dead)
        with barrier:

            def child() -> None:
                barrier.__exit__(SystemExit, SystemExit(), None)
                assert counted.mine() == []

            in_child(child)


def test_a_lock_object_that_was_made_before_the_fork_works_after_it() -> None:
    with Client(Memory("fork-object")) as client:
        lock, rlock = client.lock("a"), client.rlock("b")
        with lock, rlock:
            pass

        def child() -> None:
            with lock as hold, rlock:
                assert hold.owner == client.owner
                hold.raise_if_lost()

        in_child(child)


def test_a_client_for_asyncio_can_be_used_in_a_loop_of_the_child() -> None:
    async def main() -> None:
        async with AsyncClient(Memory("fork-loop")) as client, client.lock("a") as hold:

            async def child() -> None:
                async with client.lock("b", lease=0.5) as mine:
                    await asyncio.sleep(1.0)  # its own watchdog renews
                    mine.raise_if_lost()
                assert hold.lost

            in_child(lambda: asyncio.run(child()))
            hold.raise_if_lost()
            async with client.lock("b"):
                pass

    asyncio.run(main())


# --- a program that keeps only what its client made, as `lock = Client.from_url(url).lock("a")` ----------------------


@pytest.fixture
def closed() -> Iterator[None]:
    """Close, after the test, the engines whose client objects are gone."""
    before = set(process._forks)
    yield
    for engine in set(process._forks) - before:
        run_sync(cast(Engine, engine).close())


KINDS: dict[str, Callable[[Client], Any]] = {
    "lock": lambda client: client.lock("a", lease=0.6),
    "rlock": lambda client: client.rlock("a", lease=0.6),
    "writer": lambda client: client.rw_lock("a", lease=0.6).writer(),
    "semaphore": lambda client: client.semaphore("a", 1, lease=0.6),
    "multi_lock": lambda client: client.multi_lock(["a", client.rlock("b", lease=0.6)], lease=0.6),
}


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_lock_whose_client_is_gone_is_made_anew_in_the_child(make: Callable[[Client], Any]) -> None:
    counted = Counted()
    lock = make(Client(Faulty(Memory("fork-dropped"), counted)))
    gc.collect()
    hold = lock.acquire()

    def child() -> None:
        assert hold.lost
        for call in (hold.raise_if_lost, hold.renew, hold.release):
            with pytest.raises(LeaseLost, match="forked"):
                call()
        assert counted.mine() == [], "not a word to the store"
        mine = lock.acquire()
        assert f":{os.getpid()}:" in mine.owner
        time.sleep(1.0)  # its own watchdog renews
        mine.raise_if_lost()
        assert mine.release()
        assert "renew" in counted.mine()

    in_child(child)
    hold.raise_if_lost()
    assert hold.release()


@pytest.mark.usefixtures("closed")
def test_a_function_whose_client_is_gone_takes_its_lock_in_the_child() -> None:
    counted = Counted()

    @Client(Faulty(Memory("fork-dropped"), counted)).synchronized("a")
    def locked(body: Callable[[], object]) -> None:
        body()

    def child() -> None:
        locked(lambda: None)
        assert counted.mine() == ["try_acquire", "release"], "it does not enter again what its parent holds"

    gc.collect()
    locked(lambda: in_child(child))


def test_an_asyncio_lock_whose_client_is_gone_is_made_anew_in_the_child() -> None:
    async def main() -> None:
        counted = Counted()
        client: AsyncClient | None = AsyncClient(Faulty(Memory("fork-dropped"), counted))
        lock, other = client.lock("a"), client.lock("b", lease=0.6)
        client = None
        gc.collect()
        async with lock as hold:

            async def child() -> None:
                assert hold.lost
                with pytest.raises(LeaseLost, match="forked"):
                    await hold.release()
                assert counted.mine() == [], "not a word to the store"
                async with other as mine:
                    assert f":{os.getpid()}:" in mine.owner
                    await asyncio.sleep(1.0)  # its own watchdog renews
                    mine.raise_if_lost()

            in_child(lambda: asyncio.run(child()))
            hold.raise_if_lost()
        await lock._engine.close()

    asyncio.run(main())


class CountsForks(MemoryStore):
    """Opens itself, and counts how often it was made anew."""

    def __init__(self) -> None:
        self.forks = 0

    def open(self, runtime: Runtime, namespace: str) -> MemoryStore:
        super().__init__(runtime, namespace, "fork-counted")
        return self

    def after_fork(self) -> None:
        self.forks += 1
        super().after_fork()


@pytest.mark.usefixtures("closed")
def test_a_store_of_which_only_the_watchdog_is_left_drops_its_connections_in_the_child() -> None:
    """With them open in the child, the server would not notice the death of the parent."""
    store = CountsForks()
    Client(store).lock("a", lease=60.0).acquire()
    gc.collect()

    def child() -> None:
        assert store.forks == 1

    in_child(child)
    assert store.forks == 0


def test_a_fork_at_any_moment_while_other_threads_lock() -> None:
    """Whatever lock of ours another thread has at that moment, the child must not wait for it."""
    client, stop = Client(Memory("fork-busy")), threading.Event()

    def churn(name: str) -> None:
        while not stop.is_set():
            with suppress(LeaseLost), client.lock(name, lease=0.06):
                time.sleep(0.0)

    held = client.lock("held", lease=0.06).acquire()
    threads = [threading.Thread(target=churn, args=(f"n{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        assert held is not None
        assert held.lost
        with pytest.raises(LeaseLost):
            held.release()
        with client.lock("child", lease=0.3) as hold:
            time.sleep(0.02)
            hold.raise_if_lost()

    try:
        for _ in range(40):
            if held is None or held.lost:  # a lease this short may be lost on a busy machine
                held = client.lock("held", lease=0.06).acquire()
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        client.close()


def test_a_client_that_cannot_be_made_anew_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = Client(Memory("fork-broken")), Client(Memory("fork-whole"))
    broken.store.after_fork = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]

    def child() -> None:
        assert "could not be reset after a fork" in caplog.text
        with whole.lock("a", lease=5.0):
            pass

    in_child(child)
    assert not caplog.text, "that is the child's concern"
    for client in (broken, whole):
        client.close()

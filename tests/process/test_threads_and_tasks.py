"""Threads and tasks that share locks and clients: none releases another's hold; wrong uses are refused clearly."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from leasehold import AsyncClient, Client, NotHeld
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness, SimulatedHarness


def in_thread(call: Callable[[], object]) -> list[object]:
    """Run a call in a thread of its own; return what it returned, or the error."""
    results: list[object] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results


@pytest.mark.parametrize("kind", ["lock", "rlock"])
@pytest.mark.parametrize("harness", [BlockingHarness(), AsyncioHarness(), SimulatedHarness(1)], ids=str)
def test_two_that_share_one_lock_object_cannot_release_each_others_hold(harness: Harness, kind: str) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(Memory(f"shared-{kind}"))
        lock = getattr(client, kind)("a")
        hold = await lock.acquire()

        async def other() -> None:
            with pytest.raises(NotHeld):
                await lock.release()
            assert await lock.acquire(blocking=False) is None
            with pytest.raises(NotHeld):
                await lock.release()

        await harness.spawn(other).result()
        hold.raise_if_lost()
        await lock.release()
        with pytest.raises(NotHeld):
            await lock.release()

    harness.run(body)


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_a_thread_that_is_given_the_number_of_a_dead_one_releases_nothing(kind: str) -> None:
    with Client(Memory("numbers")) as client:
        lock = getattr(client, kind)("a")
        numbers = in_thread(lambda: (lock.acquire(), threading.get_ident())[1])
        for _ in range(50):
            (number, error) = in_thread(lambda: (threading.get_ident(), _released(lock)))[0]  # type: ignore[misc]
            assert isinstance(error, NotHeld)
            if number == numbers[0]:
                break
        else:
            pytest.skip("the system gave no number twice")
        assert lock.locked()


def _released(lock: Any) -> object:
    try:
        return lock.release()
    except NotHeld as error:
        return error


@pytest.mark.parametrize("harness", [BlockingHarness(), AsyncioHarness(), SimulatedHarness(1)], ids=str)
def test_the_hold_itself_may_be_released_by_anyone(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(Memory("anyone"))
        lock = client.lock("a")
        hold = await lock.acquire()
        assert hold is not None
        await harness.spawn(hold.release).result()
        assert not await lock.locked()
        with pytest.raises(NotHeld):
            await lock.release()

    harness.run(body)


def test_two_threads_that_release_one_hold_release_it_once() -> None:
    with Client(Memory("once")) as client:
        for _ in range(200):
            hold = client.lock("a").acquire(timeout=1)
            assert hold is not None
            gate, results = threading.Barrier(2), list[object]()

            def release(hold: Any = hold, gate: Any = gate, results: Any = results) -> None:
                gate.wait()
                try:
                    results.append(hold.release())
                except BaseException as error:
                    results.append(error)

            threads = [threading.Thread(target=release) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == [True, True]


def test_threads_count_correctly() -> None:
    count = 0
    with Client(Memory("count")) as client:

        def add() -> None:
            nonlocal count
            for _ in range(50):
                with client.lock("a"):
                    seen = count
                    time.sleep(0)
                    count = seen + 1

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert count == 400


def test_a_blocking_call_inside_a_running_loop_warns_and_the_hold_can_still_be_released() -> None:
    with Client(Memory("warns")) as client:
        lock = client.lock("a")

        async def body() -> None:
            with pytest.warns(RuntimeWarning, match="use AsyncClient"):
                hold = lock.acquire()
            assert hold is not None
            with pytest.raises(RuntimeWarning):  # as here, where warnings are errors
                hold.release()
            with pytest.warns(RuntimeWarning):
                assert hold.release() is True

        asyncio.run(body())
        assert not lock.locked()


def test_a_client_in_a_second_loop_says_so() -> None:
    client = AsyncClient(Memory("loops"))

    async def first() -> None:
        hold = await client.lock("a").acquire()
        assert hold is not None

        async def second() -> None:
            for call in (client.lock("b").acquire, client.holds, hold.renew, hold.release):
                with pytest.raises(RuntimeError, match="belongs to another event loop"):
                    await call()

        assert in_thread(lambda: asyncio.run(second())) == [None]
        hold.raise_if_lost()
        assert await hold.release() is True

    asyncio.run(first())


def test_a_client_whose_loop_was_closed_goes_on_in_the_next() -> None:
    client = AsyncClient(Memory("next loop"))
    held: list[Any] = []

    async def first() -> None:
        held.append(await client.lock("a", lease=0.6).acquire())
        held.append(await client.lock("b", lease=60.0).acquire())

    async def second() -> None:
        assert held[0].lost, "it was not renewed while no loop ran"
        held[1].raise_if_lost()
        assert await held[1].release() is True
        async with client.lock("a", lease=0.6) as hold:
            await asyncio.sleep(1.0)
            hold.raise_if_lost()
        await client.close()

    asyncio.run(first())
    time.sleep(0.7)
    asyncio.run(second())


def test_outside_a_task_there_is_no_asyncio_lock() -> None:
    client = AsyncClient(Memory("no loop"))
    with pytest.raises(RuntimeError):
        client.lock("a").acquire().send(None)


def test_an_asyncio_and_a_blocking_client_share_a_name() -> None:
    blocking = Client(Memory("both"))

    async def body() -> None:
        async with AsyncClient(Memory("both")) as client:
            hold = blocking._core.lock("a")
            assert hold.name == "a"
            held = await asyncio.to_thread(blocking.lock("a").acquire)
            assert held is not None
            waiter = asyncio.ensure_future(client.lock("a").acquire())
            await asyncio.sleep(0.05)
            assert not waiter.done()
            await asyncio.to_thread(held.release)
            got = await asyncio.wait_for(waiter, 1.0)
            assert got is not None
            assert got.token > held.token
            await got.release()

    asyncio.run(body())
    blocking.close()

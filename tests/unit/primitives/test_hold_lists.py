"""What a lock object keeps of that which was acquired through it: what its `release` needs, and no more."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehold import AsyncClient, LeaseLost, NotHeld
from leasehold.testing import TestClient

MANY = 200
FEW = 20
"""The most that is kept of them, with some to spare."""

FIXED: dict[str, Any] = {"lease": 10, "renew": False}

LOCKS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a", **FIXED),
    "fair lock": lambda client: client.lock("a", fair=True, **FIXED),
    "semaphore": lambda client: client.semaphore("a", 3, **FIXED),
    "rlock": lambda client: client.rlock("a", **FIXED),
    "writer": lambda client: client.rw_lock("a", **FIXED).writer(),
    "multi_lock": lambda client: client.multi_lock(["a", "b"], **FIXED),
}

every_lock = pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)


@pytest.fixture
def locks(caplog: pytest.LogCaptureFixture) -> Iterator[TestClient]:
    logging.getLogger("leasehold").addFilter(nothing)  # each lost lease is a record, which caplog would keep
    try:
        with TestClient() as client:
            yield client
    finally:
        logging.getLogger("leasehold").removeFilter(nothing)


def nothing(_: logging.LogRecord) -> bool:
    return False


def acquired(lock: Any) -> weakref.ref[Any]:
    """Acquire without waiting; a lock that belongs to its thread reports first that the lease before was lost."""
    try:
        hold = lock.acquire(timeout=0)
    except LeaseLost:
        hold = lock.acquire(timeout=0)
    assert hold
    return weakref.ref(hold._core)


def kept(holds: list[weakref.ref[Any]]) -> int:
    gc.collect()
    return sum(ref() is not None for ref in holds)


@every_lock
def test_what_one_thread_leaves_to_expire_is_forgotten(locks: TestClient, make: Callable[[Any], Any]) -> None:
    """As where a lock says "once in ten seconds": it is acquired, and never released."""
    lock, holds = make(locks), list[weakref.ref[Any]]()
    for _ in range(MANY):
        holds.append(acquired(lock))
        locks.clock.advance(11)
    assert kept(holds) < FEW
    with pytest.raises(LeaseLost):
        lock.release()


@every_lock
def test_what_ended_threads_leave_is_forgotten(locks: TestClient, make: Callable[[Any], Any]) -> None:
    lock, holds = make(locks), list[weakref.ref[Any]]()
    for _ in range(MANY):
        thread = threading.Thread(target=lambda: holds.append(acquired(lock)))
        thread.start()
        thread.join()
        locks.clock.advance(11)
    assert len(holds) == MANY
    assert kept(holds) < FEW


@every_lock
def test_what_ended_tasks_leave_is_forgotten(locks: TestClient, make: Callable[[Any], Any]) -> None:
    async def body(client: AsyncClient) -> None:
        lock, holds, tasks = make(client), list[weakref.ref[Any]](), list[asyncio.Task[None]]()

        async def acquire() -> None:
            hold = await lock.acquire(timeout=0)
            assert hold
            holds.append(weakref.ref(hold))

        for _ in range(MANY):
            tasks.append(asyncio.create_task(acquire()))  # so that each has a key of its own
            await tasks[-1]
            locks.clock.advance(11)
        assert kept(holds) < FEW

    asyncio.run(in_a_loop(locks, body))


def test_each_living_task_can_release_what_it_acquired(locks: TestClient) -> None:
    """However many there are: none of them has kept its hold, so only the semaphore has it."""

    async def body(client: AsyncClient) -> None:
        semaphore, all_hold = client.semaphore("a", MANY), asyncio.Barrier(MANY)

        async def work() -> None:
            assert await semaphore.acquire(timeout=0)
            await all_hold.wait()
            assert semaphore.owned()
            await semaphore.release()
            with pytest.raises(NotHeld):
                await semaphore.release()

        await asyncio.gather(*[work() for _ in range(MANY)])
        assert await semaphore.available() == MANY

    asyncio.run(in_a_loop(locks, body))


def test_one_thread_can_release_each_of_its_nested_holds(locks: TestClient) -> None:
    semaphore = locks.semaphore("a", MANY)
    for _ in range(MANY):
        assert semaphore.acquire(timeout=0)
    for _ in range(MANY):
        semaphore.release()
    with pytest.raises(NotHeld):
        semaphore.release()
    assert semaphore.available() == MANY


def test_a_task_hears_of_its_loss_however_many_others_have_acquired_since(locks: TestClient) -> None:
    async def body(client: AsyncClient) -> None:
        lock, others_are_done = client.lock("a", **FIXED), asyncio.Event()

        async def release_late() -> None:
            assert await lock.acquire(timeout=0)
            await others_are_done.wait()
            with pytest.raises(LeaseLost):
                await lock.release()

        late = asyncio.create_task(release_late())
        await asyncio.sleep(0)
        for _ in range(MANY):
            locks.clock.advance(11)
            while await asyncio.create_task(lock.acquire(timeout=0)) is None:  # the late one is first
                pass
        others_are_done.set()
        await late

    asyncio.run(in_a_loop(locks, body))


async def in_a_loop(locks: TestClient, body: Callable[[AsyncClient], Any]) -> None:
    async with locks.async_client() as client:
        await body(client)

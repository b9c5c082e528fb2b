"""SQL stores when something that waits is ended from outside, without a server: its loop is closed, or it is cancelled.

The garbage collector closes the coroutines of a closed event loop, in the middle of whatever another loop does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import ref

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold.stores._sql.session.wait_queue import PARK, WaitQueues
from leasehold.stores._sql.session.waiter import WaitQueue
from leasehold.stores._sql.transport import LOOK_AGAIN, Permit, Semaphore

SOON = 5.0
"""Seconds after which a call counts as one that never returns."""


def returns(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in an event loop of another thread; fail if it does not return."""
    errors = list[BaseException]()

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive(), "its thread waits for itself"
    for error in errors:
        raise error


class Collected:
    """A place in a list of weak references where the collector closes a coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __call__(self) -> None:
        self._coroutine.close()


async def use(semaphore: Semaphore) -> None:
    mine: list[Permit] = []
    try:
        assert await semaphore.take(0.0, mine)
        await asyncio.sleep(0)
    finally:
        mine.clear()
        semaphore.notify()


def test_a_permit_that_the_collector_returns_in_the_middle_of_another_call_goes_to_a_waiter() -> None:
    runtime = AsyncioRuntime()
    semaphore = Semaphore(runtime, 1)

    async def work() -> None:
        holder, mine = use(semaphore), list[Permit]()
        holder.send(None)
        waiting = asyncio.ensure_future(semaphore.take(runtime.now() + LOOK_AGAIN / 2, mine))
        await asyncio.sleep(0)
        taken: list[Any] = semaphore._taken
        taken.insert(0, Collected(holder))
        semaphore.notify()
        assert await waiting
        assert len(semaphore._taken) == 1

    returns(work)


def test_a_permit_that_the_collector_returns_as_another_is_taken() -> None:
    runtime = AsyncioRuntime()
    semaphore = Semaphore(runtime, 2)

    async def work() -> None:
        holder, mine = use(semaphore), list[Permit]()
        holder.send(None)
        with semaphore._mutex:
            holder.close()
        assert await semaphore.take(0.0, mine)
        assert await semaphore.take(0.0, mine)

    returns(work)


def test_cancelled_waiters_do_not_fill_the_queue_of_a_semaphore() -> None:
    runtime = AsyncioRuntime()

    async def work() -> None:
        semaphore, mine = Semaphore(runtime, 1), list[Permit]()
        assert await semaphore.take(0.0, mine)

        async def wait() -> None:
            theirs: list[Permit] = []
            try:
                await semaphore.take(runtime.now() + 60.0, theirs)
            finally:
                theirs.clear()
                semaphore.notify()

        for _ in range(100):
            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
        assert len(semaphore._queue) <= 1

    asyncio.run(work())


class Sessions:
    """Sessions whose lock is held by another until it is ``free``."""

    def __init__(self) -> None:
        self.free_now = False
        self.pauses = False
        self.open: list[object] = []
        self.ended: list[object] = []

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[object, bool]:
        if self.pauses:
            await asyncio.sleep(0)
        self.open.append(object())
        return self.open[-1], self.free_now

    async def wait(self, session: object, name: str, until: object) -> None:
        await asyncio.sleep(3600.0)

    async def free(self, session: object, name: str, until: float, *, has: bool) -> None:
        self.close(session)

    async def end(self, session: object, name: str, until: float) -> None:
        self.ended.append(session)
        self.close(session)

    def close(self, session: object) -> None:
        if session in self.open:
            self.open.remove(session)


def ticket(number: int) -> Ticket:
    return Ticket(f"t{number}", LeaseTerms(LockMode(), Owner("h", 1, "c"), lease=30.0))


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def queues(sessions: Sessions) -> WaitQueues[object]:
    return WaitQueues(AsyncioRuntime(), sessions)


async def session_for(queues: WaitQueues[object], number: int) -> object:
    return await queues.session_for(queues.enter("x", ticket(number)), queues._runtime.now() + SOON)


def test_an_attempt_that_the_collector_ends_in_the_middle_of_another_call(
    queues: WaitQueues[object], sessions: Sessions
) -> None:
    sessions.pauses = True

    async def work() -> None:
        attempt = session_for(queues, 1)
        attempt.send(None)
        with queues._mutex:
            attempt.close()
        assert await session_for(queues, 1) is None
        assert len(sessions.open) == 1

    returns(work)


def parked(queues: WaitQueues[object]) -> list[asyncio.Task[Any]]:
    """Park a session in an event loop that is closed; return its pending tasks."""
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(session_for(queues, 1)) is None
    loop.run_until_complete(asyncio.sleep(0.01))
    tasks = list(asyncio.all_tasks(loop))
    for each in tasks:
        each._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the point
    loop.close()
    assert [each.get_name() for each in tasks] == [PARK]
    return tasks


@pytest.mark.parametrize("collected", [False, True], ids=["before its collection", "after its collection"])
def test_a_session_that_is_parked_in_a_closed_loop_is_closed_and_the_next_waiter_tries(
    collected: bool, queues: WaitQueues[object], sessions: Sessions
) -> None:
    (task,) = parked(queues)
    waiting = task.get_coro()
    assert isinstance(waiting, Coroutine)
    (first,) = queues._waiters.values()
    first.last_seen -= 31.0
    sessions.free_now = True

    async def work() -> None:
        if collected:
            with queues._mutex:
                waiting.close()
        got = await session_for(queues, 2)
        assert got is not None
        assert sessions.open == [got]

    returns(work)
    waiting.close()
    assert len(sessions.open) == 1


def test_a_single_try_finds_no_waiter_of_a_closed_loop(queues: WaitQueues[object], sessions: Sessions) -> None:
    tasks = parked(queues)
    assert queues.has_waiters("x"), "for a lease: it may live"
    (first,) = queues._waiters.values()
    first.last_seen -= 31.0
    assert not queues.has_waiters("x")
    assert not sessions.open, "it would get the lock"
    del tasks


def test_the_server_ends_a_parked_session_whose_wait_the_program_cancels(
    queues: WaitQueues[object], sessions: Sessions
) -> None:
    """It may be in the queue of the server for long, and get the lock without a waiter."""

    async def work() -> None:
        assert await session_for(queues, 1) is None
        (session,) = sessions.open
        await asyncio.sleep(0.01)
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        until = queues._runtime.now() + SOON
        while sessions.open or not sessions.ended:
            assert queues._runtime.now() < until, "it is not ended"
            await asyncio.sleep(0.01)
        assert sessions.ended == [session]
        (waiter,) = queues._waiters.values()
        assert waiter.signal.is_set()

    asyncio.run(work())


def test_a_parked_session_is_no_orphan_before_its_job_has_begun() -> None:
    """Its job is spawned a moment later, while its waiter still counts as trying."""
    wait_queue, permit = WaitQueue[object]("k", "x"), Permit()
    wait_queue.parked = object()
    wait_queue.trier = ref(permit)
    assert wait_queue.orphan is None
    del permit
    assert wait_queue.orphan is wait_queue.parked

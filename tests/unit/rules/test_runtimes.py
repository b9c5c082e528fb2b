"""What the three runtimes promise to the engine, and the errors of each in the wrong place."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import runpy
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from leasehold import AsyncClient
from leasehold._runtimes import clock, process
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import CLEANUP_WITHIN, Job, finish
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness, SimulatedHarness
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Machine, Scheduler


@pytest.fixture(params=[AsyncioHarness, SimulatedHarness], ids=lambda kind: kind.name)
def tasks(request: pytest.FixtureRequest) -> Harness:
    """Return a harness whose jobs can be cancelled."""
    return request.param()


# --- what all three promise --------------------------------------------------------------------------------------


def test_what_is_gathered_comes_back_in_order_errors_too(harness: Harness) -> None:
    async def give(value: int, after: float) -> int:
        await harness.sleep(after)
        if value == 2:
            raise ValueError(value)
        return value

    async def body(harness: Harness) -> None:
        assert await harness.runtime.gather() == []
        one, two, three = await harness.runtime.gather(give(1, 0.02), give(2, 0.01), give(3, 0.0))
        assert (one, three) == (1, 3)
        assert isinstance(two, ValueError)

    harness.run(body)


def test_a_call_that_may_block_is_answered_with_its_result_or_its_error(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        assert await harness.runtime.offload(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await harness.runtime.offload(lambda: 1 // 0)
        harness.runtime.close()

    harness.run(body)


def test_nobody_waits_for_its_own_end(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        jobs, joined = list[Job](), list[bool]()
        there, said = harness.event(), harness.event()

        async def join_myself() -> None:
            await there.wait(5.0)
            joined.append(await jobs[0].join(5.0))
            said.set()

        jobs.append(harness.runtime.spawn(join_myself, "impatient"))
        there.set()
        assert await said.wait(5.0)
        assert joined == [False], "and it does not hang"
        assert await jobs[0].join(5.0)

    harness.run(body)


def test_a_job_that_runs_can_be_told_by_a_weak_reference_from_one_that_was_dropped(harness: Harness) -> None:
    """A queue of session locks knows its job by one, and closes a connection whose job is gone."""

    async def body(harness: Harness) -> None:
        begun, end = harness.event(), harness.event()

        async def work() -> None:
            begun.set()
            await end.wait(60.0)

        job = ref(harness.runtime.spawn_loop(work, "forgotten"))
        assert await begun.wait(5.0)
        gc.collect()
        running = job()
        assert running is not None
        assert running.alive()
        end.set()
        assert await running.join(5.0)

    harness.run(body)


def test_who_waits_for_a_job_that_does_not_end_cancels_it(tasks: Harness) -> None:
    async def body(harness: Harness) -> None:
        cancelled = harness.runtime.signal()

        async def for_ever() -> None:
            try:
                await harness.sleep(3600.0)
            finally:
                cancelled.set()

        job = harness.runtime.spawn(for_ever, "long")
        assert not await job.join(0.01)
        assert await cancelled.wait(1.0)

    tasks.run(body)


def test_a_cancelled_job_is_waited_for_and_not_cancelled_a_second_time(tasks: Harness) -> None:
    async def body(harness: Harness) -> None:
        tidied = list[str]()

        async def work(name: str) -> None:
            try:
                await harness.sleep(3600.0)
            finally:
                await harness.sleep(0.2)  # a second cancellation would come here
                tidied.append(name)

        jobs = [harness.runtime.spawn(lambda name=name: work(name), name) for name in ("one", "two")]  # type: ignore[misc]
        await harness.sleep(0.01)
        for job in jobs:
            job.cancel()
        for job in jobs:
            await job.join(0.0)
        assert sorted(tidied) == ["one", "two"]
        assert not any(job.alive() for job in jobs)

    tasks.run(body)


def test_a_cancelled_job_that_does_not_end_is_waited_for_a_limited_time(tasks: Harness) -> None:
    async def body(harness: Harness) -> None:
        end = harness.event()

        async def stubborn() -> None:
            while not end.is_set():
                try:
                    await harness.sleep(3600.0)
                except asyncio.CancelledError:
                    await end.wait(60.0)

        job = harness.runtime.spawn(stubborn, "stubborn")
        await harness.sleep(0.01)
        began = harness.now()
        assert not await job.join(0.0)
        assert 0.9 * CLEANUP_WITHIN < harness.now() - began < 30.0, "it was waited for as long as it took"
        assert job.alive()
        end.set()
        assert await job.join(1.0)

    tasks.run(body)


def test_what_is_shielded_ends_before_its_caller_is_cancelled(tasks: Harness) -> None:
    async def body(harness: Harness) -> None:
        ended = list[str]()

        async def work() -> str:
            await harness.sleep(0.05)
            ended.append("work")
            raise ValueError("it is not raised: the cancellation came first")

        async def caller() -> None:
            try:
                await harness.runtime.shield(work())
            finally:
                ended.append("caller")

        job = harness.spawn(caller)
        await harness.sleep(0.01)
        job.cancel()
        assert await job.join(1.0)
        assert isinstance(job.exception(), asyncio.CancelledError)
        assert ended == ["work", "caller"]

    tasks.run(body)


def test_what_is_shielded_is_cancelled_when_its_grace_is_over(tasks: Harness) -> None:
    async def body(harness: Harness) -> None:
        ended = list[str]()

        async def work() -> None:
            try:
                await harness.sleep(3600.0)
            finally:
                ended.append("work")

        async def caller() -> None:
            try:
                await harness.runtime.shield(work(), 0.05)
            finally:
                ended.append("caller")

        job = harness.spawn(caller)
        await harness.sleep(0.01)
        assert ended == []
        job.cancel()
        assert await job.join(10.0)
        assert isinstance(job.exception(), asyncio.CancelledError)
        assert ended == ["work", "caller"]

    tasks.run(body)


def test_what_is_shielded_may_be_cancelled_itself_as_by_the_end_of_a_loop() -> None:
    ended = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            ended.append("work")

    async def caller() -> None:
        try:
            await AsyncioRuntime().shield(work())
        finally:
            ended.append("caller")

    async def body() -> None:
        task = asyncio.create_task(caller())
        await asyncio.sleep(0.01)
        assert not task.done()

    asyncio.run(body())  # it cancels all that is left
    assert ended == ["work", "caller"]


def test_who_gathers_and_is_cancelled_cancels_all_and_waits_for_their_ends(tasks: Harness) -> None:
    async def body(harness: Harness) -> None:
        ended = list[int]()

        async def one(number: int) -> None:
            try:
                await harness.sleep(3600.0)
            finally:
                ended.append(number)

        job = harness.spawn(lambda: harness.runtime.gather(one(1), one(2)))
        await harness.sleep(0.01)
        job.cancel()
        assert await job.join(1.0)
        assert isinstance(job.exception(), asyncio.CancelledError)
        assert sorted(ended) == [1, 2]

    tasks.run(body)


# --- in the wrong place ------------------------------------------------------------------------------------------


def test_a_coroutine_of_another_world_is_refused_and_closed() -> None:
    ended = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("closed")

    with pytest.raises(RuntimeError, match="awaited something of another runtime"):
        finish(work())
    assert ended == ["closed"]


def in_a_callback(make: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return what steps a coroutine once in a callback of the running loop, where there is no task."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()

        def step() -> None:
            work = make()
            try:
                outcome.set_result(work.send(None))
            except Exception as error:
                outcome.set_exception(error)
            finally:
                work.close()

        loop.call_soon(step)
        await outcome

    return run


def test_a_lock_that_is_acquired_outside_a_task_says_so() -> None:
    async def body() -> None:
        async with AsyncClient(Memory("no task")) as client:
            with pytest.raises(RuntimeError, match="outside a task"):
                await in_a_callback(client.lock("a").acquire)()
            assert await client.lock("a").acquire(blocking=False) is not None

    asyncio.run(body())


def test_a_block_that_is_entered_outside_a_task_says_so_and_the_hold_lives_on() -> None:
    async def body() -> None:
        async with AsyncClient(Memory("no task")) as client:
            hold = await client.lock("a").acquire()
            assert hold is not None
            with pytest.raises(RuntimeError, match="async with needs a task"):
                await in_a_callback(hold.__aenter__)()
            hold.raise_if_lost()
            await hold.release()

    asyncio.run(body())


def test_a_simulated_lock_outside_a_task_says_so() -> None:
    runtime = SimulatedRuntime(Scheduler(0), Machine("nobody"))
    with pytest.raises(RuntimeError, match="outside a task"):
        runtime.me()
    with pytest.raises(RuntimeError, match="outside a task"):
        runtime.sleep(1.0).send(None)


# --- systems that have less --------------------------------------------------------------------------------------


def test_a_system_without_a_clock_that_counts_sleep_has_the_monotonic_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    names = runpy.run_path(str(Path(str(clock.__file__))))
    assert names["boottime"] is time.monotonic
    assert names["boottime_ns"] is time.monotonic_ns


def test_a_system_without_forks_needs_no_word_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    names = runpy.run_path(str(Path(str(process.__file__))))
    atexit.unregister(names["_at_exit"])
    assert not names["ending"]()

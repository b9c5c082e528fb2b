"""Event loops that are closed while something waits in them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient, AsyncHold
from leasehold._runtimes.aio import AsyncioRuntime, TaskSignal
from leasehold._runtimes.base import Job
from leasehold.stores.memory import Memory


class Dropped:
    """A loop that is closed while a task of it has not ended, as when a server is stopped without mercy."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.loop = asyncio.new_event_loop()
        self.task = self.loop.create_task(work())
        self.task._log_destroy_pending = False  # type: ignore[attr-defined] it is the point
        self.loop.run_until_complete(asyncio.sleep(0.05))

    def close(self) -> None:
        self.loop.close()


def test_a_signal_may_be_set_when_the_loop_of_whoever_waited_is_closed() -> None:
    signal = TaskSignal()
    dropped = Dropped(lambda: signal.wait(None))
    dropped.close()
    signal.set()
    assert signal.is_set()


def test_a_task_that_is_dropped_while_it_waits_disturbs_no_other_that_waits_for_the_same_signal() -> None:
    async def body() -> None:
        signal = TaskSignal()
        dropped, short = asyncio.create_task(signal.wait(60.0)), asyncio.create_task(signal.wait(0.01))
        await asyncio.sleep(0)
        dropped.cancel()
        assert not await asyncio.wait_for(short, 5.0), "its own timer ends the wait"
        short, long = asyncio.create_task(signal.wait(0.01)), asyncio.create_task(signal.wait(60.0))
        assert not await asyncio.wait_for(short, 5.0)
        signal.set()
        assert await asyncio.wait_for(long, 5.0), "the other's timer has not ended this wait"

    asyncio.run(body())


def test_a_lock_that_is_lost_when_the_loop_of_its_block_is_closed_is_lost_and_that_is_all() -> None:
    client = AsyncClient(Memory("dropped block"))

    async def enter() -> AsyncHold:
        return await client.lock("a").__aenter__()

    hold, told = asyncio.run(enter()), list[Exception]()
    hold.on_lost(told.append)
    hold._lease.mark_lost("it was broken")
    assert len(told) == 1
    assert hold.lost


def test_a_call_that_ends_when_its_loop_is_closed_has_no_listener_and_hurts_nobody() -> None:
    runtime, begun, go_on, ended = AsyncioRuntime(), threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait(5.0)

    dropped = Dropped(lambda: runtime.offload(call))
    assert begun.wait(5.0)
    dropped.close()
    go_on.set()
    worker = runtime._worker
    assert worker is not None
    worker._calls.put(ended.set)
    assert ended.wait(5.0), "its thread goes on with what comes next"
    runtime.close()


def test_a_call_whose_caller_was_cancelled_is_ended_and_whoever_undoes_it_comes_after() -> None:
    async def body() -> list[str]:
        runtime, done, go_on = AsyncioRuntime(), list[str](), threading.Event()

        def call() -> None:
            go_on.wait(5.0)
            done.append("done")

        task = asyncio.create_task(runtime.offload(call))
        await asyncio.sleep(0.01)
        task.cancel()
        undoing = asyncio.create_task(runtime.offload(lambda: done.append("undone")))
        go_on.set()
        await undoing
        with pytest.raises(asyncio.CancelledError):
            await task
        runtime.close()
        return done

    assert asyncio.run(body()) == ["done", "undone"]


def test_a_job_that_is_no_task_is_dropped_with_its_loop_and_leaves_its_blocks() -> None:
    runtime, ended, jobs = AsyncioRuntime(), list[str](), list[Job]()

    async def work() -> None:
        try:
            await asyncio.sleep(0)  # it only lets others run
            await runtime.signal().wait(60.0)
        finally:
            ended.append("left")

    async def main() -> None:
        jobs.append(runtime.spawn_loop(work, "dropped"))
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert not jobs[0].alive()
    assert ended == ["left"]


def test_a_watchdog_goes_on_in_the_next_loop_though_the_last_one_was_closed_while_it_slept() -> None:
    client = AsyncClient(Memory("two loops"))

    async def hold() -> None:
        async with client.lock("a", lease=1.6) as hold:
            await asyncio.sleep(2.5)
            hold.raise_if_lost()

    asyncio.run(hold())
    asyncio.run(hold())
    asyncio.run(client.close())


def test_a_job_that_is_no_task_reports_its_error_to_the_loop_and_ends() -> None:
    runtime, reports = AsyncioRuntime(), list[dict[str, Any]]()

    async def work() -> None:
        raise ValueError("a defect")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        job = runtime.spawn_loop(work, "failing")
        assert await job.join(1.0)

    asyncio.run(main())
    assert [type(report["exception"]) for report in reports] == [ValueError]


def test_a_job_that_is_no_task_is_cancelled_by_a_join_that_takes_too_long() -> None:
    runtime, ended = AsyncioRuntime(), list[str]()

    async def request() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def work() -> None:
        await runtime.attempt(request(), "request", None)
        ended.append("it went on")

    async def main() -> None:
        job = runtime.spawn_loop(work, "long")
        assert not await job.join(0.05)
        assert not job.alive()

    asyncio.run(main())
    assert ended == ["cancelled"]


@pytest.mark.parametrize("steps", [1, 2], ids=["before its first step", "after it"])
def test_a_request_that_the_program_cancels_has_the_other_result(steps: int) -> None:
    runtime, results = AsyncioRuntime(), list[str]()

    async def request() -> str:
        await asyncio.sleep(60.0)
        return "done"

    async def work() -> None:
        results.append(await runtime.attempt(request(), "request", "cancelled"))

    async def main() -> None:
        job = runtime.spawn_loop(work, "long")
        for _ in range(steps):
            await asyncio.sleep(0)
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        assert (task.get_coro().cr_await is None) == (steps == 1)  # type: ignore[union-attr]
        task.cancel()
        assert await job.join(1.0)

    asyncio.run(main())
    assert results == ["cancelled"]


def test_a_job_is_cancelled_once_so_that_its_request_can_clean_up() -> None:
    runtime, done, cancelled_twice = AsyncioRuntime(), list[str](), asyncio.Event()

    async def request() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            await cancelled_twice.wait()
            done.append("cleaned up")

    async def work() -> None:
        await runtime.attempt(request(), "request", None)

    async def main() -> None:
        job: Any = runtime.spawn_loop(work, "cancelled twice")
        await asyncio.sleep(0.01)
        job.cancel()
        await asyncio.sleep(0.01)
        cancel = job.cancel

        def cancel_again() -> None:
            cancel()
            cancelled_twice.set()

        job.cancel = cancel_again
        assert not await job.join(0.0)

    asyncio.run(main())
    assert done == ["cleaned up"]


def test_an_interrupt_in_a_request_of_a_job_leaves_the_loop_once() -> None:
    runtime, loop = AsyncioRuntime(), asyncio.new_event_loop()

    async def request() -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        await runtime.attempt(request(), "interrupted", None)

    async def main() -> None:
        runtime.spawn_loop(work, "interrupted")
        await asyncio.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()


def test_a_renewal_that_the_program_cancels_is_no_answer_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncClient(Memory("no answer")) as client, client.lock("a", lease=1.6):
            engine: Any = client._engine
            engine.contact.lost_since = engine.runtime.now()  # an outage
            sent = asyncio.Event()

            async def stalled(*args: object, **options: object) -> list[object]:
                sent.set()
                await asyncio.sleep(60.0)
                return []

            with monkeypatch.context() as patch:
                patch.setattr(engine.store, "renew", stalled)
                await sent.wait()
                (renewal,) = [each for each in asyncio.all_tasks() if each.get_name() == "leasehold-renew"]
                renewal.cancel()
                await asyncio.sleep(0.01)
                assert engine.contact.lost_since is not None

    asyncio.run(main())

"""Virtual time: tasks, signals and mutexes, the end of a world, and one history for a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Killed, Machine, Scheduler, Stuck, Wake


def simulated(body: Callable[[SimulatedRuntime], Coroutine[Any, Any, Any]]) -> Any:
    scheduler = Scheduler(0)
    runtime = SimulatedRuntime(scheduler, Machine("one"))
    return scheduler.run(runtime.machine, body(runtime))


def test_where_nothing_can_happen_any_more_it_says_who_waits() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        runtime.start(runtime.signal().wait(None), "deaf")
        await runtime.signal().wait(None)

    with pytest.raises(Stuck, match=r"at 0\.000000 s nothing can happen any more; waiting: one/main, one/deaf"):
        simulated(body)


def test_who_waits_for_ever_is_given_up() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        while True:
            await runtime.sleep(1e6)

    with pytest.raises(Stuck, match="one/main has not ended after 10000000 virtual seconds"):
        simulated(body)


def test_what_is_not_of_virtual_time_cannot_be_awaited_there() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="task one/main awaited None, which is not of virtual time"):
        simulated(body)


def test_a_mutex_that_is_taken_twice_is_a_mistake_of_whoever_takes_it() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        mutex = runtime.mutex()
        with mutex, pytest.raises(RuntimeError, match="a mutex is taken twice"), mutex:
            pass

    simulated(body)


def test_tasks_in_virtual_time_end_once_and_anybody_may_wait_for_it() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        async def seven() -> int:
            await runtime.sleep(1.0)
            return 7

        task = runtime.start(seven(), "seven")
        early, late = runtime.start(task.wait(), "early"), task
        await early.wait()
        await late.wait()
        assert not task.cancel(), "it has ended"
        assert task.result() == 7
        assert runtime.now() == 1.0

    simulated(body)


def test_a_signal_that_is_set_twice_wakes_once() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        signal, woken = runtime.signal(), list[bool]()

        async def wait() -> None:
            woken.append(await signal.wait(None))
            signal.clear()
            woken.append(await signal.wait(1.0))

        task = runtime.start(wait(), "waiting")
        await runtime.sleep(1.0)
        signal.set()
        signal.set()
        await task.wait()
        assert woken == [True, False]

    simulated(body)


def test_who_waits_for_what_has_happened_already_goes_on_at_once() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        wake = Wake()
        wake.fire()
        await runtime.pause(wake)
        assert runtime.now() == 0.0

    simulated(body)


def test_a_task_that_is_cancelled_before_its_first_step_goes_no_further_than_its_first_wait() -> None:
    async def body(runtime: SimulatedRuntime) -> None:
        begun = list[int]()

        async def work() -> None:
            begun.append(1)
            task.cancel("by itself")
            await runtime.sleep(3600.0)

        task = runtime.start(work(), "hasty")
        await task.wait()
        assert begun == [1]
        assert isinstance(task.error, asyncio.CancelledError)
        assert runtime.now() == 0.0

    simulated(body)


def test_who_will_not_die_is_taken_apart_all_the_same() -> None:
    ended = list[str]()

    async def stubborn() -> None:
        try:
            while True:
                try:
                    await Wake()
                except Killed:
                    ended.append("not yet")
        finally:
            ended.append("now")

    async def body(runtime: SimulatedRuntime) -> None:
        runtime.start(stubborn(), "stubborn")
        await runtime.sleep(1.0)

    simulated(body)
    assert len(ended) > 10
    assert ended[-1] == "now"


@pytest.mark.parametrize("gathers", [True, False])
def test_when_a_world_has_ended_nobody_begins_anything_in_it_nor_waits(gathers: bool) -> None:
    begun = list[str]()

    async def more() -> None:
        begun.append("more")

    async def body(runtime: SimulatedRuntime) -> None:
        async def tidy() -> None:
            try:
                await runtime.sleep(3600.0)
            finally:
                begun.append("tidying")
                await (runtime.gather(more(), more()) if gathers else runtime.signal().wait(None))
                begun.append("tidied")

        runtime.start(tidy(), "tidy")
        await runtime.sleep(1.0)

    simulated(body)
    assert begun == ["tidying"]


def test_one_seed_is_one_history_line_by_line() -> None:
    async def body(harness: Harness) -> None:
        async with harness.client().lock("a", lease=3.0):
            await harness.sleep(10.0)

    first, again, other = SimulatedHarness(1), SimulatedHarness(1), SimulatedHarness(2)
    for each in (first, again, other):
        each.run(body)
    assert first.trace() == again.trace() != other.trace()
    assert "leasehold-watchdog" in first.trace()

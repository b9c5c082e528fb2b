"""The background job of a client sleeps until something is due, loses no wake-up, and ends when nothing is left."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Runtime, run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._common.upkeep_job import AFTER_AN_ERROR, LINGER, UpkeepJob
from leasehold.stores.zookeeper.expiry import ExpiryJob
from leasehold.stores.zookeeper.queue_nodes import Signals
from leasehold.stores.zookeeper.tickets import Tickets
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.patience import until


class Alarms(UpkeepJob[str]):
    """Notes when it did what: each entry of ``until`` once, and what is pending."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, "alarms")
        self.until: list[float] = []
        self.steps: list[float] = []
        self.done: list[str] = []
        self.failing = 0

    def add(self, until: float) -> None:
        self.until.append(until)
        self.watch(until)

    def repeat(self, pause: float, item: str, *further: float) -> None:
        self._later(pause, item, further)

    async def _step(self) -> None:
        now = self._runtime.now()
        self.steps.append(now)
        if self.failing:
            self.failing -= 1
            raise ValueError("a defect")
        self.until = [until for until in self.until if until > now]
        for item, further in self._due():
            self.done.append(item)
            if further:
                self._later(further[0], item, further[1:])

    def _times(self) -> list[float]:
        return super()._times() + self.until

    def runs(self) -> bool:
        return self._job is not None


def simulate(body: Callable[[Harness, Alarms], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def run(harness: Harness) -> None:
        await body(harness, Alarms(harness.runtime))

    SimulatedHarness(seed).run(run)


def test_it_sleeps_until_the_next_time_and_wakes_for_an_earlier_one() -> None:
    async def body(harness: Harness, job: Alarms) -> None:
        start = harness.now()
        job.add(start + 5)
        await harness.sleep(1)
        job.add(start + 9)  # later than it looks anyway
        await harness.sleep(1)
        job.add(start + 3)
        await harness.sleep(10)
        assert [round(step - start) for step in job.steps] == [0, 2, 3, 5, 9]

    simulate(body)


def test_it_ends_after_idling_and_the_next_time_starts_it() -> None:
    async def body(harness: Harness, job: Alarms) -> None:
        for _ in range(3):
            job.add(harness.now() + 1)
            await harness.sleep(2)
            assert job.runs()
            await harness.sleep(2 * LINGER)
            assert not job.runs()
        assert not job.until

    simulate(body)


@pytest.mark.parametrize("seed", range(40))
def test_what_comes_as_it_ends_is_not_forgotten(seed: int) -> None:
    async def body(harness: Harness, job: Alarms) -> None:
        job.add(harness.now() + 1)
        await harness.sleep(1 + LINGER + (seed - 20) / 10_000)
        job.add(harness.now() + 30)
        await harness.sleep(31)
        assert not job.until

    simulate(body, seed)


def test_what_comes_between_the_end_of_its_sleep_and_its_own_end_is_not_forgotten() -> None:
    runtime = BlockingRuntime()
    job = Alarms(runtime)

    class LastMoment:
        """A signal whose first wait ends by time, just as another thread adds something."""

        waits = 0

        def set(self) -> None: ...

        def clear(self) -> None: ...

        def is_set(self) -> bool:
            return False

        async def wait(self, timeout: float | None) -> bool:
            self.waits += 1
            if self.waits == 1:
                job.add(runtime.now())
            return False

    job._job = Mock()  # it runs
    job._wake = LastMoment()
    run_sync(job._run())
    assert len(job.steps) == 2
    assert not job.until
    assert not job.runs()


def test_what_is_pending_is_done_again_after_each_pause() -> None:
    async def body(harness: Harness, job: Alarms) -> None:
        start = harness.now()
        job.repeat(1, "a", 2, 3)
        job.repeat(4, "b")
        await harness.sleep(10)
        assert job.done == ["a", "a", "b", "a"]
        assert [round(step - start) for step in job.steps] == [0, 1, 3, 4, 6]

    simulate(body)


def test_what_was_not_reached_stays_pending() -> None:
    job = Alarms(BlockingRuntime())
    job._pending = [(0.0, "a", ()), (0.0, "b", ()), (float("inf"), "c", ())]
    assert next(job._due()) == ("a", ())
    assert [item for _, item, _ in job._pending] == ["b", "c"]


def test_an_error_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: Harness, job: Alarms) -> None:
        start = harness.now()
        job.failing = 2
        job.add(start)
        await harness.sleep(10 * AFTER_AN_ERROR)
        assert [round((step - start) / AFTER_AN_ERROR) for step in job.steps] == [0, 1, 2]
        assert not job.until

    with caplog.at_level(logging.ERROR):
        simulate(body)
    assert [record.getMessage() for record in caplog.records] == ["alarms failed unexpectedly; it continues"] * 2


def test_a_closed_one_does_nothing_more() -> None:
    async def body(harness: Harness, job: Alarms) -> None:
        job.repeat(5, "a")
        await harness.sleep(1)
        await job.close(1.0)
        assert harness.now() < 2
        job.repeat(0, "b")
        await harness.sleep(10)
        assert not job.done
        assert not job.runs()

    simulate(body)


def test_what_a_step_has_put_off_is_not_due_twice_if_the_program_cancels_the_step() -> None:
    begun = asyncio.Event()

    class Slow(Alarms):
        async def _step(self) -> None:
            for item, further in self._due():
                self._later(60.0, item, further)
                begun.set()
                await asyncio.sleep(60.0)

    async def main() -> None:
        job = Slow(AsyncioRuntime())
        job.repeat(0.0, "a")
        await begun.wait()
        for step in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[arg-type]
            step.cancel()
        await asyncio.sleep(0.05)
        assert [item for _, item, _ in job._pending] == ["a"]
        await job.close(1.0)

    asyncio.run(main())


class Watched(ExpiryJob):
    """ZooKeeper's; its job ends just after a close has looked for it."""

    ends = False

    @property
    def _job(self) -> Any:
        job = self.__dict__["job"]
        if self.ends and job is not None and threading.current_thread() is threading.main_thread():
            self.ends = False
            until(lambda: self.__dict__["job"] is None)
        return job

    @_job.setter
    def _job(self, job: Any) -> None:
        self.__dict__["job"] = job

    def stop(self) -> None:
        super().stop()
        self.ends = True


def test_a_close_and_the_end_of_the_job_at_once() -> None:
    runtime = BlockingRuntime()
    job = Watched(runtime, Tickets(runtime), Signals(runtime), Mock(), lambda: 0)
    job.watch(runtime.now() + 60.0)
    until(lambda: job._sleeps_until)
    run_sync(job.close(1.0))

"""The executors in one process: what is refused, what a job gets, and what its events say."""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor as ThreadPool
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from leasehold import AsyncClient, Client, LeaseLost
from leasehold.events import Event, Released
from leasehold.integrations.apscheduler import AsyncIOExecutor, ThreadPoolExecutor
from leasehold.stores import registry
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from support.patience import until

NEVER = datetime(2000, 1, 1)
WITHIN = 20.0
"""Seconds in which a run must come."""

Events = queue.SimpleQueue[JobExecutionEvent]


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Client]:
    with Client.from_url(f"sqlite:///{tmp_path}/locks.db") as client:
        yield client


@contextmanager
def scheduler(locks: Client, at_most: float = 60.0) -> Iterator[tuple[BackgroundScheduler, Events]]:
    """Run a worker; its events come in the queue."""
    made = BackgroundScheduler(executors={"default": ThreadPoolExecutor(locks, at_most=at_most)})
    events = Events()
    made.add_listener(events.put, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
    made.start()
    try:
        yield made, events
    finally:
        made.shutdown()


def now(**later: float) -> dict[str, Any]:
    return {"trigger": "date", "run_date": datetime.now(UTC) + timedelta(**later), "misfire_grace_time": None}


def test_a_job_gets_its_arguments_and_the_tick_and_its_result_is_in_the_event(locks: Client) -> None:
    def report(region: str, *, tick: datetime = NEVER) -> tuple[str, datetime]:
        return region, tick

    with scheduler(locks) as (worker, events):
        job = now()
        worker.add_job(report, id="report", args=["eu"], **job)
        event = events.get(timeout=WITHIN)
    assert event.retval == ("eu", job["run_date"])
    assert event.scheduled_run_time == job["run_date"]


def test_a_tick_among_the_arguments_is_left_as_it_is(locks: Client) -> None:
    with scheduler(locks) as (worker, events):
        worker.add_job(lambda tick, more=0: (tick, more), id="by place", args=["metronome"], **now())
        assert events.get(timeout=WITHIN).retval == ("metronome", 0)
        worker.add_job(lambda tick: tick, id="by name", kwargs={"tick": "metronome"}, **now())
        assert events.get(timeout=WITHIN).retval == "metronome"


def test_a_run_that_another_worker_has_is_no_event(locks: Client) -> None:
    job = now()
    with scheduler(locks) as (one, ran), scheduler(locks) as (other, events):
        one.add_job(str, id="report", **job)
        assert ran.get(timeout=WITHIN).retval == ""
        other.add_job(str, id="report", **job)
        other.add_job(str, id="another", **job)
        assert events.get(timeout=WITHIN).job_id == "another"
        assert events.empty() or events.get().job_id == "another"


def test_an_error_of_the_job_is_its_event_and_the_tick_counts_as_run(
    locks: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    job = now()
    with scheduler(locks) as (worker, events):
        worker.add_job(fails, id="fails", **job)
        assert isinstance(events.get(timeout=WITHIN).exception, ZeroDivisionError)
        worker.add_job(fails, id="fails", **job)
        worker.add_job(str, id="another", **job)
        assert events.get(timeout=WITHIN).job_id == "another"


def test_all_times_of_a_late_scheduler_run_in_order_without_coalescing(locks: Client) -> None:
    """A worker that stood still catches up; another that stood still as long finds everything done."""
    ticks = [datetime.now(UTC) - timedelta(seconds=each) for each in (3, 2, 1)]
    for expected in (ticks, []):
        executor = ThreadPoolExecutor(locks, at_most=60)
        ran = list[datetime]()
        worker = BackgroundScheduler(executors={"default": executor})
        worker.start()
        try:
            job = worker.add_job(lambda tick=NEVER, ran=ran: ran.append(tick), "cron", year=2100, id="late")
            job.modify(misfire_grace_time=None)
            executor.submit_job(job, ticks)
        finally:
            worker.shutdown()
        assert ran == expected


def test_a_scheduler_ends_though_the_store_does_not_answer() -> None:
    down, asked = True, threading.Event()

    def plan(call: Call) -> Fault | None:
        asked.set()
        return Fault(Kind.REFUSE) if down else None

    with Client(Faulty(registry.opener("memory:"), plan), response_timeout=0.1) as locks:
        made = BackgroundScheduler(executors={"default": ThreadPoolExecutor(locks, at_most=60)})
        made.start()
        made.add_job(lambda: None, id="report", **now())
        assert asked.wait(WITHIN)
        until(lambda: not made.get_jobs(), WITHIN)
        ending = threading.Thread(target=made.shutdown)
        ending.start()
        ending.join(WITHIN / 2)
        ended, down = not ending.is_alive(), False
        ending.join(WITHIN)
        assert ended


def test_a_run_longer_than_at_most_ends_with_lease_lost(locks: Client, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()
    with scheduler(locks, at_most=0.3) as (worker, events):
        worker.add_job(functools.partial(over.wait, 1.0), id="long", **now())
        assert isinstance(events.get(timeout=WITHIN).exception, LeaseLost)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "has no id that all workers share; add it with id="),
        ({"id": "report", "jitter": 3}, "jitter gives the job 'report' another scheduled time"),
        ({"id": "report", "trigger": OrTrigger([CronTrigger(second="*"), IntervalTrigger(seconds=1)])}, "combines"),
        ({"id": "report", "trigger": OrTrigger([CronTrigger(second="*", jitter=1)])}, "jitter gives"),
    ],
)
def test_a_job_whose_times_or_id_differ_between_workers_does_not_run(
    locks: Client, options: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = threading.Event()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and words in str(record.exc_info[1]):
                said.set()

    handler = Listening()
    logging.getLogger("apscheduler.scheduler").addHandler(handler)
    try:
        with scheduler(locks) as (worker, events):
            trigger = {} if isinstance(options.get("trigger"), OrTrigger) else {"trigger": "interval", "seconds": 1}
            worker.add_job(str, **{**trigger, **options})
            assert said.wait(WITHIN)
        assert events.empty()
    finally:
        logging.getLogger("apscheduler.scheduler").removeHandler(handler)


def test_the_client_of_the_other_flavor_and_a_bad_option_are_refused(locks: Client) -> None:
    with pytest.raises(TypeError, match=r"needs a leasehold.AsyncClient, not Client; or use ThreadPoolExecutor"):
        AsyncIOExecutor(locks, at_most=60)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="or use AsyncIOExecutor"):
        ThreadPoolExecutor(AsyncClient.from_url("memory:"), at_most=60)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at_most"):
        ThreadPoolExecutor(locks, at_most=0)


def test_under_asyncio_coroutines_run_on_the_loop_and_functions_in_threads(tmp_path: Path) -> None:
    async def on_loop(*, tick: datetime = NEVER) -> tuple[int, datetime]:
        return threading.get_ident(), tick

    async def main() -> None:
        events = asyncio.Queue[JobExecutionEvent]()
        loop = asyncio.get_running_loop()
        async with AsyncClient.from_url(f"sqlite:///{tmp_path}/locks.db") as client:
            worker = AsyncIOScheduler(executors={"default": AsyncIOExecutor(client, at_most=60)})
            worker.add_listener(
                lambda event: loop.call_soon_threadsafe(events.put_nowait, event), EVENT_JOB_EXECUTED | EVENT_JOB_ERROR
            )
            worker.start()
            job = now()
            worker.add_job(on_loop, id="coroutine", **job)
            worker.add_job(functools.partial(on_loop), id="partial", **job)
            worker.add_job(threading.get_ident, id="function", **job)
            got = [await asyncio.wait_for(events.get(), WITHIN) for _ in range(3)]
            results = {event.job_id: event.retval for event in got}
            assert results["coroutine"] == results["partial"] == (threading.get_ident(), job["run_date"])
            assert results["function"] != threading.get_ident()
            worker.shutdown()

    asyncio.run(main())


def test_a_shutdown_releases_when_the_functions_in_threads_have_ended() -> None:
    """A cancellation ends a coroutine, and no thread: another worker would run the next tick beside it."""
    order, go, began = list[str](), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        assert go.wait(WITHIN)
        order.append("ended")

    def observe(event: Event) -> None:
        if isinstance(event, Released):
            order.append("released")

    async def main() -> None:
        async with AsyncClient.from_url("memory:", observer=observe) as client:
            executor = AsyncIOExecutor(client, at_most=60)
            await executor.wait_closed()  # it has not been started
            worker = AsyncIOScheduler(executors={"default": executor})
            worker.start()
            worker.shutdown()
            await executor.wait_closed()
            worker.start()  # as a scheduler may
            worker.add_job(job, id="report", **now())
            while not began.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            worker.shutdown()
            await asyncio.sleep(0)  # the scheduler shuts down in a callback
            worker.start()
            worker.shutdown()  # this one finds no runs
            await asyncio.sleep(0)
            for _ in range(100):  # as the end of `asyncio.run` does, again and again
                await asyncio.sleep(0)
                for run in executor._ending:
                    run.cancel()
            before = list(order)
            go.set()
            assert before == []
            await executor.wait_closed()
            assert order == ["ended", "released"]

    asyncio.run(main())


def test_an_executor_does_not_wait_for_the_runs_of_another_event_loop() -> None:
    executor = AsyncIOExecutor(AsyncClient.from_url("memory:"), at_most=60)

    async def main() -> None:
        worker = AsyncIOScheduler(executors={"default": executor})
        worker.start()
        worker.shutdown()
        await asyncio.wait_for(executor.wait_closed(), WITHIN)
        executor._ending.add(asyncio.get_running_loop().create_future())  # of a function that still runs in a thread

    asyncio.run(main())
    asyncio.run(main())


def test_a_function_that_waits_for_a_thread_does_not_begin_after_the_shutdown() -> None:
    go, began, ran = threading.Event(), threading.Event(), list[str]()

    def blocks() -> None:
        began.set()
        assert go.wait(WITHIN)

    async def main() -> None:
        with ThreadPool(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            async with AsyncClient.from_url("memory:") as client:
                executor = AsyncIOExecutor(client, at_most=60)
                worker = AsyncIOScheduler(executors={"default": executor})
                worker.start()
                threads.submit(blocks)
                assert began.wait(WITHIN)
                worker.add_job(ran.append, id="report", args=["report"], **now())
                while not threads._work_queue.qsize():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                worker.shutdown()
                await executor.wait_closed()
                go.set()
        assert ran == []

    asyncio.run(main())

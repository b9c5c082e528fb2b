"""Who has the watchdog's schedule while a holder is called back, and how many threads that takes."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost
from leasehold._engine.watchdog.backup_thread import PATIENCE, BackupThread
from leasehold._engine.watchdog.watchdog import Watchdog
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Job, finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold_lab.conformance.case_context import LASTING
from support.patience import until

SOON = 10.0


class Schedule:
    """Counts who takes it over."""

    def __init__(self) -> None:
        self.taken = threading.Semaphore(0)

    async def take_over(self, job: Job) -> None:
        self.taken.release()


def threads(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == name]


def test_quick_calls_leave_the_schedule_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "leasehold._engine.watchdog.backup_thread.PATIENCE", SOON
    )  # the machine may hold up even the quickest
    schedule, called = Schedule(), list[int]()
    backup_thread = BackupThread(BlockingRuntime(), schedule.take_over)
    for number in range(100):
        assert backup_thread.call([lambda number=number: called.append(number)])
    assert called == list(range(100))
    assert not schedule.taken.acquire(blocking=False)
    finish(backup_thread.close(SOON))
    assert not threads("leasehold-backup")


def test_a_call_that_raises_keeps_no_other_from_being_made() -> None:
    schedule, called = Schedule(), list[int]()
    backup_thread = BackupThread(BlockingRuntime(), schedule.take_over)

    def fail() -> None:
        raise ZeroDivisionError("a mistake")

    with pytest.raises(ZeroDivisionError):
        backup_thread.call([fail, lambda: called.append(1), fail, lambda: called.append(2)])
    assert called == [1, 2]
    finish(backup_thread.close(SOON))


def test_the_backup_thread_takes_over_the_schedule_from_a_slow_callback() -> None:
    schedule = Schedule()
    backup_thread = BackupThread(BlockingRuntime(), schedule.take_over)
    for _ in range(3):  # each time there is another who stands by
        assert not backup_thread.call([lambda: None, lambda: schedule.taken.acquire(timeout=SOON) and None])
    finish(backup_thread.close(SOON))
    until(lambda: not threads("leasehold-backup"), SOON)


def test_a_starter_that_is_held_up_does_not_keep_the_new_thread_from_taking_over() -> None:
    """On a busy machine the new thread may run long before the one that started it."""

    class Busy(BlockingRuntime):
        def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
            job = super().spawn(work, name)
            time.sleep(5 * PATIENCE)
            return job

    schedule = Schedule()
    backup_thread = BackupThread(Busy(), schedule.take_over)
    for _ in range(3):
        assert not backup_thread.call([lambda: schedule.taken.acquire(timeout=SOON / 5) and None])
    finish(backup_thread.close(SOON))
    until(lambda: not threads("leasehold-backup"), SOON)


def test_who_was_overtaken_and_comes_back_does_not_end_the_patience_with_the_next_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes back while the next callback is under way, which must be overtaken, too, if it is slow."""
    monkeypatch.setattr("leasehold._engine.watchdog.backup_thread.PATIENCE", 0.5)
    comes_back, taken, overtaken = threading.Event(), list[Job](), list[bool]()

    def slow() -> None:
        comes_back.set()
        first.join(SOON)
        end = time.monotonic() + SOON / 2
        while len(taken) < 2 and time.monotonic() < end:
            time.sleep(0.005)
        overtaken.append(len(taken) == 2)

    async def take_over(job: Job) -> None:
        taken.append(job)
        if len(taken) == 1:
            backup_thread.call([slow])

    backup_thread = BackupThread(BlockingRuntime(), take_over)
    first = threading.Thread(target=lambda: backup_thread.call([lambda: comes_back.wait(SOON) and None]))
    first.start()
    until(lambda: overtaken, SOON)
    finish(backup_thread.close(SOON))
    assert overtaken == [True]


class Interleaved(Watchdog):
    """One thread ends its run while another begins one: each waits for the other between its look and its step."""

    @property
    def _current_run(self) -> object:  # type: ignore[override]
        run = self.__dict__["_current_run"]
        if self.begins.is_set() and threading.current_thread().name == "leasehold-watchdog":
            self.looked.set()
            self.begun.wait(0.3)
        return run

    @_current_run.setter
    def _current_run(self, run: object) -> None:
        new = threading.current_thread().name == "leasehold-backup"
        if new:
            self.begins.set()
            self.looked.wait(0.3)
        self.__dict__["_current_run"] = run
        if new:
            self.begun.set()

    def hook(self) -> None:
        self.begins, self.looked, self.begun = threading.Event(), threading.Event(), threading.Event()


def test_a_run_that_ends_as_the_next_one_begins_does_not_end_that_one() -> None:
    with Client.from_url("memory:") as client:
        watchdog = client._core._engine.watchdog
        watchdog.__class__ = Interleaved
        assert isinstance(watchdog, Interleaved)
        watchdog.hook()
        kept = client.lock("kept", lease=4.0).acquire()
        lost = client.lock("lost", lease=1.0, renew=False).acquire()
        assert kept is not None
        assert lost is not None
        lost.on_lost(lambda error: watchdog.begins.wait(SOON) and None)
        assert watchdog.begun.wait(SOON)
        time.sleep(5.0)
        kept.raise_if_lost()


class Struck(Exception):
    """An exception of a signal handler."""


class Strikes:
    """A mutex after which a signal handler raises, once, as a run begins: Python may run one when a block ends."""

    def __init__(self) -> None:
        self._mutex, self.struck = threading.RLock(), False

    def __enter__(self) -> None:
        self._mutex.acquire()

    def __exit__(self, *error: object) -> None:
        self._mutex.release()
        if sys._getframe(1).f_code.co_name == "_run" and not self.struck:
            self.struck = True
            raise Struck

    def _is_owned(self) -> bool:
        return self._mutex._is_owned()  # type: ignore[attr-defined, no-any-return]


def test_a_run_that_is_interrupted_as_it_begins_does_not_count_as_one() -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with AsyncClient.from_url("memory:") as client:
            strikes = client._engine.watchdog._starting = Strikes()  # type: ignore[assignment]
            first = await client.lock("first", lease=4.0).acquire()
            await asyncio.sleep(0.1)
            assert strikes.struck
            second = await client.lock("second", lease=4.0).acquire()
            await asyncio.sleep(5.0)
            for hold in (first, second):
                assert hold is not None
                hold.raise_if_lost()

    asyncio.run(body())


def test_callbacks_under_way_at_the_close_start_no_take_over() -> None:
    schedule, go_on = Schedule(), threading.Event()
    backup_thread = BackupThread(BlockingRuntime(), schedule.take_over)
    backup_thread.prepare()
    caller = threading.Thread(target=lambda: backup_thread.call([lambda: go_on.wait(SOON) and None]))
    finish(backup_thread.close(SOON))
    caller.start()
    assert not schedule.taken.acquire(timeout=5 * PATIENCE)
    go_on.set()
    caller.join()
    assert not threads("leasehold-backup")


def test_a_loop_has_no_second_thread() -> None:
    schedule = Schedule()
    backup_thread = BackupThread(AsyncioRuntime(), schedule.take_over)
    backup_thread.prepare()
    assert backup_thread.call([lambda: None])
    assert not threads("leasehold-backup")


def test_after_a_slow_callback_exactly_one_thread_runs_the_schedule_and_none_is_left_at_the_end() -> None:
    go_on, called = threading.Event(), threading.Event()

    def stay(error: LeaseLost) -> None:
        called.set()
        go_on.wait(SOON)

    with Client.from_url("memory:") as client:
        kept = client.lock("kept", lease=LASTING).acquire()
        core = client._core._engine.watchdog
        before = core._job  # not after the call, when another may have the schedule
        lost = client.lock(
            "lost", lease=1.0, renew=False
        ).acquire()  # time for `on_lost`, which calls at once if it is lost
        assert kept is not None
        assert lost is not None
        lost.on_lost(stay)
        assert called.wait(SOON)
        until(lambda: core._job is not before, SOON)
        go_on.set()
        assert before is not None
        until(lambda: not before.alive(), SOON)  # it came back, and had no schedule any more
        assert core._job is not None
        assert core._job.alive()
        time.sleep(1.5 * LASTING)
        kept.raise_if_lost()
    until(lambda: not threads("leasehold-backup") and not threads("leasehold-watchdog"), SOON)

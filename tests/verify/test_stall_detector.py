"""The stall detector records when a client got no processor; recorded stalls excuse late notices and late grants."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from leasehold._runtimes.base import Flavor
from leasehold.client import Client
from leasehold_lab.history import Bounds, History, Hold, Stall, check, merged, paused_for
from leasehold_lab.history.journal import Journal, Record
from leasehold_lab.verify.clients import worker
from leasehold_lab.verify.clients.stall_detector import EVERY, NOTICED, StallDetector, timed
from leasehold_lab.verify.clients.workload import Load


class Machine:
    """A clock, and the processor time that this process used."""

    def __init__(self, asleep: float, used: float) -> None:
        self.time = 100.0
        self.processor = 5.0
        self._asleep = asleep
        self._used = used

    def sleep(self, _: float) -> None:
        self.time += self._asleep
        self.processor += self._used


@pytest.mark.parametrize(
    ("asleep", "used", "written"),
    [
        (EVERY, 0.0, None),
        (EVERY + 0.005, 0.0, None),  # such a delay is normal
        (EVERY + 0.5, 0.0, 0.5),
        (EVERY + 0.5, 0.2, 0.3),  # it ran for a part of it
        (EVERY + 0.5, 0.5, None),  # it used the processor itself
    ],
)
def test_records_only_time_that_the_process_did_not_use(asleep: float, used: float, written: float | None) -> None:
    machine, records = Machine(asleep, used), list[Record]()
    journal = Journal("1", lambda: machine.time, records.append)
    StallDetector(journal, lambda: machine.time, lambda: machine.processor, machine.sleep).probe()
    assert [record["for"] for record in records] == ([] if written is None else [pytest.approx(written)])
    assert all(record["is"] == "held up" and record["whom"] == "1" for record in records)
    assert all(record["t"] == machine.time for record in records)


def test_records_the_wait_of_the_notifying_thread() -> None:
    machine, records, waits = Machine(EVERY, 0.0), list[Record](), iter([5.0, 5.0, 5.4, 5.4, 0.0, 0.2])
    journal = Journal("1", lambda: machine.time, records.append)
    detector = StallDetector(
        journal, lambda: machine.time, lambda: machine.processor, machine.sleep, lambda: next(waits)
    )
    for _ in range(5):  # the thread waits for 0.4 s, and then ends, and another is in its place, which waits for 0.2 s
        detector.probe()
    assert [(round(record["t"] - 100.0, 3), round(record["for"], 3)) for record in records] == [
        (2 * EVERY, 0.4),
        (5 * EVERY, 0.2),
    ]


STARVED = """
import os, threading, time
from leasehold import Client
from leasehold_lab.verify.clients.stall_detector import waited_by_watchdog, waited_by_main

with Client.from_url("memory:") as locks:
    hold = locks.lock("x", lease=0.3).acquire()
    watchdog = [thread.native_id for thread in threading.enumerate() if thread.name == "leasehold-watchdog"]
    core = min(os.sched_getaffinity(0))
    if os.fork() == 0:
        os.sched_setaffinity(0, {core})
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        os._exit(0)
    print(*(round(waited(), 3) for waited in (waited_by_main, waited_by_watchdog)))
    os.sched_setaffinity(os.getpid(), {core})  # the main thread alone
    os.sched_setscheduler(os.getpid(), os.SCHED_IDLE, os.sched_param(0))
    time.sleep(0.2)
    sum(range(10 ** 6))
    os.wait()
    print(*(round(waited(), 3) for waited in (waited_by_main, waited_by_watchdog)))
"""
"""Prints how long two threads have waited for a processor, before and after one of them had to share it."""


def test_linux_counts_how_long_each_thread_waits() -> None:
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", STARVED], capture_output=True, text=True, check=True)
    (main, watchdog), (main_after, watchdog_after) = (map(float, line.split()) for line in said.stdout.splitlines())
    assert main_after - main > 0.2, "it shared its processor with a process of higher priority"
    assert watchdog_after - watchdog < main_after - main


def test_pauses_that_overlap_count_once() -> None:
    spans = [(1.0, 2.0), (1.5, 3.0), (1.6, 1.7), (4.0, 9.0)]
    pauses = [*(Stall("a", *span) for span in spans), Stall("b", 0.0, 9.0)]
    assert paused_for(pauses, "a.1", 0.0, 5.0) == pytest.approx(3.0)
    assert paused_for(pauses, "a.1", 1.2, 1.8) == pytest.approx(0.6)
    assert paused_for(pauses, "a.1", 3.0, 4.0) == 0.0


def test_merges_short_pauses_that_follow_closely() -> None:
    moments = [Stall("b", 1.0, 1.1), Stall("a", 1.0, 1.1), Stall("a", 1.12, 1.3), Stall("a", 1.4, 1.5)]
    assert list(merged(moments, 0.04)) == [Stall("a", 1.0, 1.3), Stall("a", 1.4, 1.5), Stall("b", 1.0, 1.1)]
    assert list(merged([], 0.04)) == []


def test_a_pause_excuses_a_notice_that_comes_right_after_it() -> None:
    lost = Hold("a.1", "x", 0.0, 0.1, 1.0, token=1, notified=1.7, deadline=1.0)
    kept, bounds = (Stall("a", 0.9, 1.3), Stall("a", 1.35, 1.65)), Bounds(notified=0.25)
    assert check(History(holds=(lost,), short_pauses=kept), bounds).ok
    assert not check(History(holds=(lost,), short_pauses=kept[:1]), bounds).ok, (
        "it ran again, and was notified 0.4 s later"
    )
    assert not check(History(holds=(lost,), short_pauses=(Stall("b", 0.9, 1.7),)), bounds).ok, (
        "the pause was of another client"
    )


def test_short_pauses_excuse_a_late_wake_up_but_no_lost_queue_entry() -> None:
    held = Hold("a", "x", 0.0, 0.1, 1.0, 1.01, 1)
    woken = Hold("b", "x", 0.2, 3.0, 4.0, 4.01, 2, queued=0.3)
    bounds = Bounds(wake_up=0.5)
    assert not check(History(holds=(held, woken)), bounds).ok
    assert check(History(holds=(held, woken), short_pauses=(Stall("b", 1.2, 2.9),)), bounds).ok
    first = Hold("b", "x", 0.2, 5.0, 6.0, 6.01, 3, queued=0.3, fair=True)
    second = Hold("c", "x", 0.5, 1.1, 4.9, 4.91, 2, queued=0.6, fair=True)
    moment = (Stall("b", 0.9, 1.0),)
    assert not check(History(holds=(held, first, second), short_pauses=moment)).ok
    assert check(History(holds=(held, first, second), stalls=moment)).ok


def test_a_relay_pause_excuses_a_late_wake_up_but_no_late_notice() -> None:
    held = Hold("a", "x", 0.0, 0.1, 1.0, 1.01, 1)
    woken = Hold("b", "x", 0.2, 3.0, 4.0, 4.01, 2, queued=0.3)
    lost = Hold("a.1", "y", 0.0, 0.1, 1.0, token=1, notified=1.7, deadline=1.0)
    relay_pauses = (Stall("a", 1.0, 2.9), Stall("b", 1.2, 2.9))
    assert check(History(holds=(held, woken), relay_pauses=relay_pauses), Bounds(wake_up=0.5)).ok
    assert not check(History(holds=(lost,), relay_pauses=relay_pauses), Bounds(notified=0.25)).ok


def test_records_a_slow_call_of_the_run_itself() -> None:
    machine, late = Machine(0.0, 0.0), list[float]()

    def write(seconds: float, *, result: str) -> str:
        machine.time += seconds
        return result

    call = timed(write, lambda: machine.time, late.append)
    assert call(NOTICED / 2, result="fast") == "fast"
    assert late == []
    assert call(2 * NOTICED, result="slow") == "slow"
    assert late == [pytest.approx(2 * NOTICED)]


@pytest.mark.parametrize(("flavor", "whom"), [(Flavor.ASYNC, "7"), (Flavor.SYNC, "7.3")])
def test_a_slow_write_of_a_task_counts_as_a_pause_of_its_whole_client(
    flavor: Flavor, whom: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that waits for the run's own resource blocks the event loop, and so delays the notices of other tasks."""

    class Slow:
        def __init__(self, port: int) -> None: ...

        def write(self, who: str, name: str, token: int) -> bool:
            time.sleep(2 * NOTICED)
            return True

    monkeypatch.setattr(worker, "ResourceClient", Slow)
    records = list[Record]()
    orders = worker.Orders("7", "", "n", flavor, 1, "1", "", 1, Load(names=1), 1.0)
    with Client.from_url(f"sqlite:{tmp_path}/locks") as client:
        assert worker._worker(orders, 3, client._core, records.append)._write("7.3", "stock", 1)
    assert [(record["is"], record["whom"]) for record in records] == [("held up", whom)]
    assert records[0]["for"] >= 2 * NOTICED

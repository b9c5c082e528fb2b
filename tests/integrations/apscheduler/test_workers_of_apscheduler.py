"""Real schedulers in several processes: each tick runs in one, whoever is killed, and whatever becomes of the store."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.patience import until
from support.workers import Journal, Worker, working

PROGRAMS = Path(__file__).parent / "programs"
TICKING = str(PROGRAMS / "ticking.py")
FLAVORS = ("background", "asyncio", "blocking", "asyncio")
LEASE = 2
"""Seconds: `at_most` in the program. A worker that is killed in the middle of a run blocks for so long."""

Start = Callable[..., list[Worker]]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def start(server: RedisServer, journal: Journal, tmp_path: Path) -> Iterator[Start]:
    """Start workers, each with its flavor."""
    with ExitStack() as stack:

        def starting(*flavors: str, work: float = 0, **job: Any) -> list[Worker]:
            given = {"LOCKS": server.url, "JOURNAL": str(journal.path), "WORK": str(work)}
            if job:
                given["JOB"] = json.dumps(job)
            return [
                stack.enter_context(working(TICKING, flavor, folder=tmp_path, name=f"{flavor}-{number}", **given))
                for number, flavor in enumerate(flavors)
            ]

        yield starting


def ticks(journal: Journal) -> Counter[float]:
    """Return how often each tick ran."""
    return Counter(each["tick"] for each in journal.entries("run"))


def missing(journal: Journal) -> list[float]:
    """Return the whole seconds that ran nowhere, between the first and the last that did."""
    ran = sorted(ticks(journal))
    return [each for each in range(int(ran[0]), int(ran[-1])) if each not in ran]


def test_each_tick_runs_in_one_of_four_workers_of_both_flavors(start: Start, journal: Journal) -> None:
    start(*FLAVORS)
    journal.until(4, "up")
    after = len(journal.entries("run"))
    journal.until(after + 6, "run")
    assert set(ticks(journal).values()) == {1}
    assert missing(journal) == []
    assert journal.entries("failed") == []


def test_the_runner_is_killed_again_and_again_and_no_tick_runs_twice(start: Start, journal: Journal) -> None:
    """It is killed in the middle of a run: for the rest of its lease others cannot begin, and those ticks are lost."""
    workers = {worker.process.pid: worker for worker in start(*FLAVORS, work=0.3)}
    journal.until(4, "up")
    for _ in range(3):
        count = len(journal.entries("run"))
        runner = journal.until(count + 1, "run")[-1]["pid"]
        os.kill(runner, signal.SIGKILL)
        workers.pop(runner).kill()
    (last,) = workers
    count = len(journal.entries("run"))
    journal.until(count + 4, "run", pid=last)
    assert set(ticks(journal).values()) == {1}
    assert len(missing(journal)) <= 3 * (LEASE + 1)


def test_while_the_store_is_down_nothing_runs_and_then_it_goes_on(
    start: Start, journal: Journal, server: RedisServer
) -> None:
    start("background", "asyncio", "asyncio", trigger="cron", second="*", misfire_grace_time=1)
    journal.until(3, "up")
    journal.until(3, "run")
    server.restart()  # once with its data, so that the stamps are there again
    before = len(journal.entries("run"))
    journal.until(before + 2, "run")
    server.kill()
    down = time.time()
    journal.until(3, "failed")
    up = time.time()
    server.start()
    before = len(journal.entries("run"))
    journal.until(before + 3, "run")
    ran = ticks(journal)
    assert all(count == 1 for tick, count in ran.items() if tick < down - 2 or tick > up), ran
    assert not [each for each in ran if down + 1 < each < up - 1]
    assert {each["error"] for each in journal.entries("failed")} == {"StoreUnavailable"}


def test_an_outage_shorter_than_the_grace_time_loses_no_run(
    start: Start, journal: Journal, server: RedisServer
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=4)
    start("background", "asyncio", trigger="date", run_date=at.isoformat(), misfire_grace_time=60)
    journal.until(2, "up")
    server.kill()
    until(lambda: datetime.now(UTC) > at + timedelta(seconds=1), within=20)
    assert journal.entries("run") == []
    server.start()
    (run,) = journal.until(1, "run")
    assert run["tick"] == pytest.approx(at.timestamp(), abs=0.001)
    until(lambda: "is tried again" in (journal.path.parent / "background-0.log").read_text())
    assert journal.entries("failed") == []


def test_a_worker_that_comes_late_does_not_run_what_another_ran(start: Start, journal: Journal) -> None:
    """As one whose clock is behind does: it gets to the same scheduled time later."""
    at = datetime.now(UTC) + timedelta(seconds=1)
    job = {"trigger": "date", "run_date": at.isoformat(), "misfire_grace_time": None}
    start("background", **job)
    journal.until(1, "run")
    late = start("asyncio", "blocking", **job)
    for worker in late:
        until(lambda worker=worker: "executed successfully" in worker.said(), within=40)  # type: ignore[misc]
    assert len(journal.entries("run")) == 1


def test_an_interval_is_counted_alike_by_workers_that_start_at_different_times(start: Start, journal: Journal) -> None:
    job = {"trigger": "interval", "seconds": 1}
    start("background", **job)
    journal.until(2, "run")
    start("asyncio", "asyncio", **job)
    journal.until(3, "up")
    count = len(journal.entries("run"))
    journal.until(count + 5, "run")
    assert set(ticks(journal).values()) == {1}
    assert missing(journal) == []
    assert all(tick == int(tick) for tick in ticks(journal))


@pytest.mark.parametrize("kind", ["uvicorn", "gunicorn"])
def test_a_job_runs_once_and_not_once_in_each_web_worker(
    kind: str, server: RedisServer, journal: Journal, tmp_path: Path
) -> None:
    port = free_port()
    command = {
        "uvicorn": ("-m", "uvicorn", "--workers", "2", "--port", str(port), "--app-dir", str(PROGRAMS), "ticking:app"),
        "gunicorn": ("-m", "gunicorn", "-w", "2", "-b", f"127.0.0.1:{port}", "--chdir", str(PROGRAMS), "ticking:wsgi"),
    }[kind]
    given = {"LOCKS": server.url, "JOURNAL": str(journal.path), **({"WSGI": "1"} if kind == "gunicorn" else {})}
    with working(*command, folder=tmp_path, **given) as web:
        assert len({each["pid"] for each in journal.until(2, "up")}) == 2, web.said()
        count = len(journal.entries("run"))
        journal.until(count + 4, "run")
    assert set(ticks(journal).values()) == {1}
    assert missing(journal) == []

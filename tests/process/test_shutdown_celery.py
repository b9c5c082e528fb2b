"""Celery workers that get signals, or run into time limits, during a task, as `docs/shutdown.md` has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from shutdown import PATIENCE, SHORT, Place, Program

from leasehold_lab.servers import RedisServer

WORKER = ("-m", "celery", "--app", "tasks", "worker", "--concurrency", "1", "--loglevel", "INFO", "--without-mingle")

KEEP = """

@app.task
def keep():
    locks.lock("kept", lease=600).acquire()
"""
"""A task that holds a lock outside of a block."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with RedisServer() as server:
        yield Place(tmp_path, server)


@contextmanager
def working(
    place: Place, *options: str, lease: int = 600, work: float = 2, keep: bool = False, **environment: str
) -> Iterator[Program]:
    """Run a worker; a task of it is inside the block."""
    place.write("tasks.py", lease=lease, work=work)
    with (place.folder / "tasks.py").open("a") as code:
        code.write(KEEP)
    sent = "import tasks; " + "tasks.keep.delay(); " * keep + "tasks.sell.delay()"
    given = {**os.environ, "LEASEHOLD_URL": place.server.url, "BROKER_URL": place.broker}
    subprocess.run([sys.executable, "-c", sent], cwd=place.folder, env=given, check=True, timeout=PATIENCE)
    with place.run(*WORKER, *options, **environment) as program:
        program.holder()
        yield program


def queued(place: Place) -> int:
    """Return how many tasks the broker has for other workers."""
    with redis.Redis.from_url(place.broker) as broker:
        found: int = broker.llen("celery")  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_warm_shutdown_lets_the_task_finish(place: Place, pool: str) -> None:
    with working(place, "--pool", pool, keep=True) as program:
        program.send(signal.SIGTERM)
        assert program.ended() == 0
        program.is_free_at_once()
        program.is_free_at_once("kept")
        assert "succeeded" in program.said()
        assert queued(place) == 0


@pytest.mark.parametrize("remap", [False, True], ids=["SIGQUIT", "SIGTERM is SIGQUIT"])
def test_a_cold_shutdown_cuts_the_block_which_releases_and_the_task_is_queued_again(place: Place, remap: bool) -> None:
    environment = {"REMAP_SIGTERM": "SIGQUIT"} if remap else {}
    with working(place, work=60, **environment) as program:
        program.send(signal.SIGTERM if remap else signal.SIGQUIT)
        program.ended()
        program.is_free_at_once()
        assert queued(place) == 1, program.said()
        assert ": lost: " not in program.said()


@pytest.mark.parametrize("limit", ["--soft-time-limit", "--time-limit"])
def test_a_time_limit_cuts_the_block_which_releases(place: Place, limit: str) -> None:
    with working(place, limit, "1", work=60) as program:
        program.is_free_at_once()
        program.until_said("ime limit")
        program.send(signal.SIGTERM)
        assert program.ended() == 0


def test_a_task_of_a_killed_process_is_done_again_when_the_lease_has_ended(place: Place) -> None:
    with working(place, lease=SHORT) as program:
        first = program.holder()
        os.kill(first, signal.SIGKILL)
        program.until_said("succeeded")
        assert "WorkerLostError" in program.said()
        program.is_free_at_once()


def test_a_killed_worker_blocks_for_a_lease(place: Place) -> None:
    with working(place, lease=SHORT, work=60) as program:
        program.send(signal.SIGKILL)
        program.ended()
        program.is_free_by_the_end_of_the_lease()

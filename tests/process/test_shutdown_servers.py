"""gunicorn and uvicorn that get SIGTERM during a request, as `docs/shutdown.md` has them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from shutdown import SHORT, Place, Program, Request, on_a_free_port, requested

from leasehold_lab.servers import RedisServer

GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:PORT")
UVICORN = ("-m", "uvicorn", "--port", "PORT")

WORKERS = {
    "sync": ("shop:app",),
    "gthread": ("--worker-class", "gthread", "--threads", "8", "shop:app"),
    "uvicorn": ("--worker-class", "uvicorn_worker.UvicornWorker", "ashop:app"),
    "asgi": ("--worker-class", "asgi", "ashop:app"),
}

SOLD = b"200 sold"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with RedisServer() as server:
        yield Place(tmp_path, server)


@contextmanager
def serving(place: Place, *command: str, lease: int = 600, work: float = 2) -> Iterator[tuple[Program, Request]]:
    """Run a server; a request of it is inside the block."""
    place.write("shop.py", lease=lease, work=work)
    place.write("ashop.py", lease=lease, work=work)
    place.copy("gunicorn.conf.py")
    port, words = on_a_free_port(command)
    with place.run(*words) as program, closing(requested(program, port)) as request:
        yield program, request


@pytest.mark.parametrize("workers", WORKERS)
def test_gunicorn_lets_the_request_finish(place: Place, workers: str) -> None:
    with serving(place, *GUNICORN, *WORKERS[workers]) as (program, request):
        program.send(signal.SIGTERM)
        assert request.answer() == SOLD
        assert program.ended() == 0
        program.is_free_at_once()
        program.said_nothing_bad()


def test_a_quick_end_of_a_sync_worker_cuts_the_block_which_releases(place: Place) -> None:
    with serving(place, *GUNICORN, *WORKERS["sync"], work=60) as (program, request):
        program.send(signal.SIGINT)
        assert request.answer().startswith(b"500")
        assert program.ended() == 0
        program.is_free_at_once()
        assert "SystemExit" in program.said()


def test_a_quick_end_of_threads_lets_the_request_finish(place: Place) -> None:
    with serving(place, *GUNICORN, *WORKERS["gthread"]) as (program, request):
        program.send(signal.SIGINT)
        assert request.answer() == SOLD
        assert program.ended() == 0
        program.is_free_at_once()
        program.said_nothing_bad()


def test_a_quick_end_of_the_asgi_worker_ends_the_block_as_a_loss(place: Place) -> None:
    with serving(place, *GUNICORN, *WORKERS["asgi"], work=60) as (program, request):
        program.send(signal.SIGINT)
        assert request.answer() != SOLD
        assert program.ended() == 0
        program.is_free_at_once()


def test_a_uvicorn_worker_knows_no_quick_end_and_is_killed(place: Place) -> None:
    command = (*GUNICORN, "--graceful-timeout", "1", *WORKERS["uvicorn"])
    with serving(place, *command, lease=SHORT, work=60) as (program, request):
        program.send(signal.SIGINT)
        assert program.ended() == 0
        program.is_free_by_the_end_of_the_lease()
        assert request.answer() == b""


@pytest.mark.parametrize("workers", WORKERS)
def test_new_workers_take_over_when_the_request_has_finished(place: Place, workers: str) -> None:
    with serving(place, *GUNICORN, *WORKERS[workers]) as (program, request):
        program.send(signal.SIGHUP)
        assert request.answer() == SOLD
        program.is_free_at_once()
        program.said_nothing_bad()


def test_a_timeout_of_a_sync_worker_cuts_the_block_which_releases(place: Place) -> None:
    with serving(place, *GUNICORN, "--timeout", "1", *WORKERS["sync"], work=60) as (program, request):
        assert request.answer().startswith(b"500")
        program.is_free_at_once()
        assert "WORKER TIMEOUT" in program.said()


@pytest.mark.parametrize("workers", ["sync", "gthread", "uvicorn"])
def test_a_request_that_outlasts_the_graceful_timeout_blocks_for_a_lease(place: Place, workers: str) -> None:
    command = (*GUNICORN, "--graceful-timeout", "1", *WORKERS[workers])
    with serving(place, *command, lease=SHORT, work=60) as (program, request):
        program.send(signal.SIGTERM)
        assert program.ended() == 0
        program.is_free_by_the_end_of_the_lease()
        assert request.answer() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)])
def test_uvicorn_lets_the_request_finish(place: Place, number: int, code: int) -> None:
    with serving(place, *UVICORN, "--timeout-graceful-shutdown", "30", "ashop:app") as (program, request):
        program.send(number)
        assert request.answer() == SOLD
        assert program.ended() == code
        program.is_free_at_once()
        program.said_nothing_bad()


def test_uvicorn_cancels_a_request_that_outlasts_its_limit_and_the_block_releases(place: Place) -> None:
    command = (*UVICORN, "--timeout-graceful-shutdown", "1", "ashop:app")
    with serving(place, *command, work=60) as (program, request):
        program.send(signal.SIGTERM)
        assert request.answer() != SOLD
        assert program.ended() == -signal.SIGTERM
        program.is_free_at_once()
        assert ": lost: " not in program.said()


def test_a_second_ctrl_c_cancels_the_request_and_the_block_releases(place: Place) -> None:
    with serving(place, *UVICORN, "ashop:app", work=60) as (program, _):
        program.send(signal.SIGINT)
        program.until_said("Waiting for connections to close")
        program.send(signal.SIGINT)
        assert program.ended() == 0
        program.is_free_at_once()


def test_a_killed_uvicorn_blocks_for_a_lease(place: Place) -> None:
    with serving(place, *UVICORN, "ashop:app", lease=SHORT, work=60) as (program, request):
        program.send(signal.SIGKILL)
        program.ended()
        program.is_free_by_the_end_of_the_lease()
        assert request.answer() == b""

"""Scripts that get SIGTERM, as `docs/shutdown.md` has them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shutdown import LOCK, SHORT, Place, examples

from leasehold_lab.servers import RedisServer
from support.patience import until

CUT = 128 + signal.SIGTERM


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with RedisServer() as server:
        yield Place(tmp_path, server)


def test_the_page_has_these_examples() -> None:
    scripts = {"until_done.py", "at_once.py", "asyncio_at_once.py"}
    assert set(examples()) == scripts | {"shop.py", "ashop.py", "gunicorn.conf.py", "tasks.py"}


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("until_done.py", "signal.signal(signal.SIGTERM, stop)"),
        ("at_once.py", "signal.signal(signal.SIGTERM, stop)"),
        ("asyncio_at_once.py", "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)"),
    ],
)
def test_without_a_handler_sigterm_is_a_crash(place: Place, name: str, without: str) -> None:
    with place.run(place.write(name, lease=SHORT, work=60, without=without)) as program:
        program.holder()
        program.send(signal.SIGTERM)
        assert program.ended() == -signal.SIGTERM
        program.is_free_by_the_end_of_the_lease()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_flag_lets_the_block_finish(place: Place, number: int) -> None:
    name = place.write("until_done.py")
    with (place.folder / name).open("a") as code:
        code.write("                print('finished')\n")
    with place.run(name) as program:
        program.holder()
        program.send(number)
        assert program.ended() == 0
        program.is_free_at_once()
        program.said_nothing_bad()
        assert "finished" in program.said()


@pytest.mark.parametrize("name", ["at_once.py", "asyncio_at_once.py"])
def test_an_exception_ends_the_block_which_releases(place: Place, name: str) -> None:
    with place.run(place.write(name, work=60)) as program:
        program.holder()
        place.server.pause()  # the release is under way when the second signal comes: after its end it has no effect
        program.send(signal.SIGTERM)
        time.sleep(0.1)
        program.send(signal.SIGTERM)  # the second changes nothing
        time.sleep(0.1)
        place.server.resume()
        assert program.ended() == CUT
        program.is_free_at_once()
        program.said_nothing_bad()


@pytest.mark.parametrize("name", ["at_once.py", "asyncio_at_once.py"])
def test_ctrl_c_ends_the_block_which_releases(place: Place, name: str) -> None:
    with place.run(place.write(name, work=60)) as program:
        program.holder()
        program.send(signal.SIGINT)
        assert program.ended() == -signal.SIGINT
        program.is_free_at_once()
        assert ": lost: " not in program.said()


@pytest.mark.parametrize("name", ["at_once.py", "asyncio_at_once.py"])
def test_sigterm_at_any_moment_of_acquire_and_release(place: Place, name: str) -> None:
    """The work takes no time, so most signals strike inside of a call."""
    chance = random.Random(name)
    for _ in range(8):
        with place.run(place.write(name, work=0)) as program:
            program.holder()
            time.sleep(chance.uniform(0.0, 0.03))
            program.send(signal.SIGTERM)
            assert program.ended() == CUT, program.said()
            program.is_free_at_once()
            assert "Traceback" not in program.said()


def test_sigterm_ends_a_wait_and_leaves_the_queue(place: Place) -> None:
    with place.run(place.write("at_once.py")) as program:
        program.holder()
        rival = program.rival
        hold = rival.lock(LOCK).acquire(timeout=30)  # in turn, after the block
        assert hold is not None
        until(lambda: (info := rival.inspect(LOCK)) is not None and info.waiters)
        program.send(signal.SIGTERM)
        assert program.ended() == CUT
        info = rival.inspect(LOCK)
        assert info is not None
        assert info.waiters == ()
        hold.release()


def test_run_passes_sigterm_on_and_releases(place: Place) -> None:
    script = place.folder / "report.sh"
    script.write_text("#!/bin/sh\ntrap 'echo cleaned; exit 3' TERM\nwhile :; do sleep 0.05; done\n")
    script.chmod(0o755)
    with place.run("-m", "leasehold", "run", "--lease", "600", LOCK, "--", "./report.sh") as program:
        program.holder()
        time.sleep(0.5)  # the shell sets its trap
        program.send(signal.SIGTERM)
        assert program.ended() == 3, program.said()
        assert "cleaned" in program.said()
        program.is_free_at_once()

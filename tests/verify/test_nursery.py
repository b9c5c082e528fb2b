"""Clients that a nursery makes live and die like processes that were started one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold_lab.verify.clients.forkserver import Child, Nursery

SOON = 20.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("sqlite") as nursery:
        yield nursery


def born(nursery: Nursery, log: Path) -> Child:
    with log.open("wb") as complaints:
        return nursery.client(complaints)


def test_one_that_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    child, other = (born(nursery, tmp_path / name) for name in ("one", "other"))
    assert child.pid != other.pid
    child.send_signal(signal.SIGKILL)
    assert child.wait(SOON) == -signal.SIGKILL
    assert child.poll() == -signal.SIGKILL
    child.send_signal(signal.SIGKILL)  # to nobody: its number may be another's
    assert other.poll() is None
    child.close()
    other.close()
    assert other.wait(SOON) == 1, "whoever steered it is gone"


def test_one_that_fails_says_why(nursery: Nursery, tmp_path: Path) -> None:
    child = born(nursery, tmp_path / "log")
    child.stdin.write(b"these are no orders\n")
    child.stdin.flush()
    assert child.wait(SOON) == 1
    assert "JSONDecodeError" in (tmp_path / "log").read_text()
    child.close()


def test_one_that_stands_still_has_not_ended(nursery: Nursery, tmp_path: Path) -> None:
    child = born(nursery, tmp_path / "log")
    child.send_signal(signal.SIGSTOP)
    child.close()
    assert child.wait(0.2) is None
    child.send_signal(signal.SIGCONT)
    assert child.wait(SOON) == 1


def test_each_is_a_session_of_its_own(nursery: Nursery, tmp_path: Path) -> None:
    child = born(nursery, tmp_path / "log")
    until = time.monotonic() + SOON
    while os.getsid(child.pid) != child.pid and time.monotonic() < until:
        time.sleep(0.001)
    assert os.getsid(child.pid) == child.pid, "Ctrl-C is for the process that steers"
    child.close()


def test_it_ends_with_its_block(tmp_path: Path) -> None:
    with Nursery("sqlite") as nursery:
        child = born(nursery, tmp_path / "log")
    with pytest.raises(OSError, match="descriptor"):
        nursery.ended(child.pid)
    child.close()


def test_a_scheme_that_nobody_knows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Nursery("nothing") as nursery, pytest.raises((EOFError, OSError)):
        born(nursery, tmp_path / "log")
    assert "unknown scheme" in capfd.readouterr().err

"""Clients from the forkserver behave like processes that were started one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold_lab.verify.clients.forkserver import Child, ForkServer

SOON = 20.0


@pytest.fixture(scope="module")
def forkserver() -> Iterator[ForkServer]:
    with ForkServer("sqlite") as forkserver:
        yield forkserver


def fork(forkserver: ForkServer, log: Path) -> Child:
    with log.open("wb") as stderr:
        return forkserver.client(stderr)


def test_a_killed_client(forkserver: ForkServer, tmp_path: Path) -> None:
    child, other = (fork(forkserver, tmp_path / name) for name in ("one", "other"))
    assert child.pid != other.pid
    child.send_signal(signal.SIGKILL)
    assert child.wait(SOON) == -signal.SIGKILL
    assert child.poll() == -signal.SIGKILL
    child.send_signal(signal.SIGKILL)  # sends nothing: its process id may be in use again
    assert other.poll() is None
    child.close()
    other.close()
    assert other.wait(SOON) == 1, "its standard input was closed"


def test_a_failed_client_logs_its_error(forkserver: ForkServer, tmp_path: Path) -> None:
    child = fork(forkserver, tmp_path / "log")
    child.stdin.write(b"these are no orders\n")
    child.stdin.flush()
    assert child.wait(SOON) == 1
    assert "JSONDecodeError" in (tmp_path / "log").read_text()
    child.close()


def test_a_stopped_client_has_not_ended(forkserver: ForkServer, tmp_path: Path) -> None:
    child = fork(forkserver, tmp_path / "log")
    child.send_signal(signal.SIGSTOP)
    child.close()
    assert child.wait(0.2) is None
    child.send_signal(signal.SIGCONT)
    assert child.wait(SOON) == 1


def test_each_client_has_its_own_session(forkserver: ForkServer, tmp_path: Path) -> None:
    child = fork(forkserver, tmp_path / "log")
    until = time.monotonic() + SOON
    while os.getsid(child.pid) != child.pid and time.monotonic() < until:
        time.sleep(0.001)
    assert os.getsid(child.pid) == child.pid, "Ctrl-C must reach only the process of the run"
    child.close()


def test_the_forkserver_ends_with_its_block(tmp_path: Path) -> None:
    with ForkServer("sqlite") as forkserver:
        child = fork(forkserver, tmp_path / "log")
    with pytest.raises(OSError, match="descriptor"):
        forkserver.exit_status(child.pid)
    child.close()


def test_an_unknown_scheme_ends_the_forkserver(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ForkServer("nothing") as forkserver, pytest.raises((EOFError, OSError)):
        fork(forkserver, tmp_path / "log")
    assert "unknown scheme" in capfd.readouterr().err

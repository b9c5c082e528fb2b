"""A run that is ended from outside leaves nothing behind: no client, though a fault has stopped it, and no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.patience import until

STALLS = ["verify", "--faults", "stall", "--lease", "10", "--seconds", "600", "--clients", "4"]
"""With this lease a client stays stopped for seconds."""


@contextmanager
def run_with_stopped_clients(folder: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """Start a run, and wait until a fault has stopped clients; yield the run and all its descendants."""
    command = [sys.executable, "-m", "leasehold", *STALLS, f"sqlite:{folder}/locks.db"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        everyone = set[int]()
        try:
            until(lambda: any(state(pid) == "T" for pid in descendants(run.pid)), within=60)
            everyone = descendants(run.pid)
            yield run, everyone
        finally:
            run.kill()
            for pid in everyone:
                if state(pid) not in ("", "Z"):
                    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> set[int]:
    try:
        children = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()
    return children.union(*map(descendants, children))


def state(pid: int) -> str:
    """Return the state of a process, as in proc(5); empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_stopped_clients_end_with_their_run(sent: signal.Signals, tmp_path: Path) -> None:
    with run_with_stopped_clients(tmp_path) as (run, everyone):
        assert len(everyone) >= 5  # four clients and the forkserver
        run.send_signal(sent)
        _, said = run.communicate(timeout=30)
        until(lambda: all(state(pid) in ("", "Z") for pid in everyone))
    assert run.returncode == (-sent if sent is signal.SIGKILL else 128 + sent)
    assert "Traceback" not in said
    if sent is not signal.SIGKILL:
        assert "interrupted" in said
        assert not list(tmp_path.glob("leasehold-verify-*")), "its temporary folder stays"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_stopped_clients_end_though_the_forkserver_is_killed(tmp_path: Path) -> None:
    with run_with_stopped_clients(tmp_path) as (run, everyone):
        (forkserver,) = (pid for pid in everyone if descendants(pid))
        os.kill(forkserver, signal.SIGKILL)
        until(lambda: all(state(pid) in ("", "Z") for pid in everyone))
        run.communicate(timeout=30)
    assert run.returncode not in (0, None)

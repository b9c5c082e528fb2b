"""`leasehold run` with random trees of processes: however a run ends, the next one does not overlap with any."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from shells import Shell, alive

from support.patience import until

FAMILY = """
import os, random, signal, sys, time
lot = random.Random(sys.argv[1])
def settle(depth, name):
    if depth and lot.random() < 0.5:
        os.setsid() if lot.random() < 0.5 else os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if lot.random() < 0.5:
            signal.signal(number, signal.SIG_IGN)
    for child in range(lot.randrange(3) if depth < 4 else 0) if depth else range(3):
        seed = lot.random()
        if os.fork() == 0:
            lot.seed(seed)
            settle(depth + 1, f"{name}.{child}")
    with open(f"member{name}", "w") as file:
        file.write(str(os.getpid()))
    if depth and lot.random() < 0.4:
        os._exit(0)
    time.sleep(60)
    os._exit(0)
settle(0, "")
"""
"""A tree of processes with sessions, groups, ignored signals and early ends by lot."""

ALONE = """
import pathlib
for path in pathlib.Path().glob("member*"):
    status = pathlib.Path("/proc", path.read_text(), "status")
    if status.exists() and "State:\\tZ" not in status.read_text():
        print(path.name, flush=True)
"""

SEEDS = [str(seed) for seed in range(4)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", ["killed", "stopped", "broken", "after the guard"])
def test_the_next_run_does_not_overlap(sqlite_shell: Shell, end: str, seed: str) -> None:
    words = ("--lease", "1.5", "--grace", "0.1", "--", sys.executable, "-c", FAMILY, seed)
    run = sqlite_shell.start("run", "job", *words)
    until(lambda: (sqlite_shell.folder / "member").exists())
    (guard,) = map(int, Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())
    _end(sqlite_shell, end, run.pid, guard)
    try:
        assert sqlite_shell.call("run", "job", "--", sys.executable, "-c", ALONE) == (0, "", "")
    finally:
        for path in sqlite_shell.folder.glob("member*"):
            pid = path.read_text()  # empty if it was killed while it wrote
            if pid and alive(int(pid)):
                os.kill(int(pid), signal.SIGKILL)


def _end(shell: Shell, end: str, run: int, guard: int) -> None:
    match end:
        case "killed":
            os.kill(run, signal.SIGKILL)
        case "stopped":
            os.kill(run, signal.SIGSTOP)
        case "broken":
            assert shell.call("break", "job", "--yes")[0] == 0
            assert shell.started[0].wait(10) == 76
        case _:
            os.kill(guard, signal.SIGKILL)
            shell.started[0].wait(10)

"""`leasehold run` and the descendants of the command: none continues without the lock, in whatever session it is."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shells import NOISE, SLACK, Shell, alive

from support.patience import until

LOST, TAKEN, KILLED = 76, 75, 128 + signal.SIGKILL

LEAVE_THE_SESSION = """
import os, signal, sys, time
generations = int(sys.argv[1])
child = os.fork()
if child == 0:
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    for _ in range(generations - 1):
        if os.fork():
            os._exit(0)
    with open("new", "w") as file:
        file.write(f"{os.getpid()}\\n")
    os.rename("new", "pid")
    time.sleep(60)
    os._exit(0)
if generations > 1:
    os.waitpid(child, 0)
if "ends" not in sys.argv:
    time.sleep(60)
"""
"""A child of the command in a session of its own; by a fork more, an orphan."""

KEEP_FORKING = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        for _ in range(5000):
            with open("beats", "ab") as file:
                file.write(b"x")
            time.sleep(0.001)
            if os.fork():
                os._exit(0)
        os._exit(0)
time.sleep(60)
"""

FORK_AND_END = KEEP_FORKING.replace("range(3)", "range(1)").replace("5000", "2000").replace("time.sleep(0.001)", "pass")
"""As fast as it can: a search of ``/proc`` often misses it."""

DIES_SLOWLY = """
import os, time
from leasehold.cli.run import guard

class DyingGuard(guard.GuardProcess):
    def run(self):
        started = os.fork()
        if started == 0:
            os.close(self._report)
            os.setsid()
            time.sleep(60)
        with open("pids", "w") as file:
            file.write(f"{self._child} {started}")
        os.close(self._report)
        time.sleep(0.3)

guard.GuardProcess = DyingGuard
child, _ = guard.fork_guarded(["sleep", "60"], grouped=True)
child.start({})
while not child.unguarded:
    child.ended()
child.await_none_left()
print(child.ended())
"""
"""A guard that dies in two steps, as each process does: its files are closed, and then its children are passed on. On a
busy machine there may be a long time between the two.
"""

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
"""From ``linux/ptrace.h``."""

generations = pytest.mark.parametrize("generation", ["1", "2"], ids=["setsid", "setsid and a double fork"])


def _start(shell: Shell, *words: str, options: tuple[str, ...] = ()) -> tuple[int, int]:
    """Start a run; return its pid, and that of the process that left the session."""
    run = shell.start("run", "job", *options, "--", sys.executable, "-c", LEAVE_THE_SESSION, *words)
    return run.pid, int(shell.file("pid"))


@generations
def test_a_process_in_another_session_is_killed_with_a_run_that_is_killed(shell: Shell, generation: str) -> None:
    run, pid = _start(shell, generation, "deaf", options=("--lease", "1.5"))
    os.kill(run, signal.SIGKILL)
    try:
        assert until(lambda: not alive(pid)) < 0.5 + NOISE
    finally:
        _end(pid)


@generations
def test_a_process_in_another_session_gets_sigterm(sqlite_shell: Shell, generation: str) -> None:
    run, pid = _start(sqlite_shell, generation)
    os.kill(run, signal.SIGTERM)
    try:
        assert sqlite_shell.started[0].wait(5) == 128 + signal.SIGTERM
        assert until(lambda: not alive(pid)) < 0.5 + NOISE
    finally:
        _end(pid)


@generations
def test_a_process_in_another_session_ends_before_a_run_that_lost_its_lock(shell: Shell, generation: str) -> None:
    _, pid = _start(shell, generation, "deaf", options=("--lease", "1.5", "--grace", "0.2"))
    assert shell.call("break", "job", "--yes")[0] == 0
    try:
        assert shell.started[0].wait(5) == LOST
        assert not alive(pid)
    finally:
        _end(pid)


@generations
def test_a_process_in_another_session_is_killed_when_the_run_is_stopped(sqlite_shell: Shell, generation: str) -> None:
    run, pid = _start(sqlite_shell, generation, "deaf", options=("--lease", "1"))
    os.kill(run, signal.SIGSTOP)
    try:
        assert until(lambda: not alive(pid), 5) < 1 + NOISE
        os.kill(run, signal.SIGCONT)
        assert sqlite_shell.started[0].wait(5) == LOST
    finally:
        _end(pid)


@generations
def test_a_process_in_another_session_may_outlive_a_command_that_ends_by_itself(
    sqlite_shell: Shell, generation: str
) -> None:
    _, pid = _start(sqlite_shell, generation, "ends")
    try:
        assert sqlite_shell.started[0].wait(5) == 0
        assert alive(pid)
        assert sqlite_shell.json("ls") == []
    finally:
        _end(pid)


def test_a_process_that_keeps_forking_is_killed(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start("run", "job", "--", sys.executable, "-c", KEEP_FORKING)
    beats = sqlite_shell.folder / "beats"
    until(lambda: beats.exists() and beats.stat().st_size > 20)
    run.kill()
    assert sqlite_shell.call("run", "job", "true")[0] == 0  # it waits until nothing is left of the other
    count = beats.stat().st_size
    sqlite_shell.call("ls")
    assert beats.stat().st_size == count


def test_a_guard_that_is_killed_takes_the_command_with_it_and_ends_the_run(shell: Shell) -> None:
    run, pid = _start(shell, "2", "deaf", options=("--lease", "5"))
    (guard,) = _children(run)
    command = [one for one in _children(guard) if one != pid]
    os.kill(guard, signal.SIGKILL)
    try:
        assert shell.started[0].wait(5) in (KILLED, LOST)  # lost, where the store knows the hold by its guard
        assert [one for one in (*command, pid) if alive(one)] == []
        assert len(command) == 1
        assert shell.call("run", "job", "--timeout", "1", "true")[0] == 0
    finally:
        _end(pid)


def test_processes_that_fork_and_end_are_killed_after_a_guard_that_was_killed(sqlite_shell: Shell) -> None:
    beats = sqlite_shell.folder / "beats"
    run = sqlite_shell.start("run", "job", "--", sys.executable, "-c", FORK_AND_END)
    until(lambda: beats.exists() and beats.stat().st_size > 20)
    os.kill(_children(run.pid)[0], signal.SIGKILL)
    assert run.wait(20) in (KILLED, LOST)
    count = beats.stat().st_size
    sqlite_shell.call("ls")
    assert beats.stat().st_size == count


@pytest.mark.parametrize("end", ["killed", "lost"])
def test_without_descriptors_of_processes_all_are_killed_too(sqlite_shell: Shell, end: str) -> None:
    """Linux before 5.3 has none, and neither has conda's Python."""
    (sqlite_shell.folder / "sitecustomize.py").write_text("import os\ndel os.pidfd_open\n")
    sqlite_shell.env["PYTHONPATH"] = str(sqlite_shell.folder)
    run, pid = _start(sqlite_shell, "2", "deaf", options=("--lease", "2", "--grace", "0.2"))
    if end == "killed":
        os.kill(run, signal.SIGKILL)
    else:
        assert sqlite_shell.call("break", "job", "--yes")[0] == 0
    try:
        assert sqlite_shell.started[0].wait(10) == (-signal.SIGKILL if end == "killed" else LOST)
        assert until(lambda: not alive(pid)) < (0.5 + NOISE if end == "killed" else NOISE)
    finally:
        _end(pid)


def test_a_guard_whose_files_are_closed_already_may_still_be_the_parent_of_all(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIES_SLOWLY], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    try:
        assert done.stdout == f"{-signal.SIGKILL}\n", done.stderr
        assert [one for one in pids if alive(one)] == []
    finally:
        _end(*pids)


def test_a_stopped_guard_continues_when_the_run_is_killed(sqlite_shell: Shell) -> None:
    run, pid = _start(sqlite_shell, "2", "deaf")
    (guard,) = _children(run)
    os.kill(guard, signal.SIGSTOP)
    os.kill(run, signal.SIGKILL)
    try:
        assert until(lambda: not alive(pid)) < 0.5 + NOISE
    finally:
        _end(guard, pid)


def test_a_rival_waits_until_all_that_a_killed_run_started_is_gone(sqlite_shell: Shell) -> None:
    run, pid = _start(sqlite_shell, "1", "deaf")
    guards = [one for one in _children(run) if _command(one) == _command(run)]
    with _held_back(guards[0]):
        os.kill(run, signal.SIGKILL)
        sqlite_shell.started[0].wait(5)
        assert alive(pid)  # the guard has done nothing yet
        taken = sqlite_shell.call("run", "job", "--timeout", "1", "--", "kill", "-0", str(pid))
    try:
        assert (taken[0], alive(guards[0])) == (TAKEN, True), "the rival began while a process of the other ran"
        script = f"if grep -qs '^State:.[^Z]' /proc/{pid}/status; then echo overlap; else echo alone; fi"
        assert sqlite_shell.call("run", "job", "--timeout", str(SLACK), "--", "sh", "-c", script)[1] == "alone\n"
    finally:
        _end(pid)


def test_older_children_of_the_run_are_not_killed(sqlite_shell: Shell) -> None:
    before = ("sh", "-c", 'sleep 60 & echo $! >stranger; exec "$@"', "sh")
    command = ("--lease", "1", "--", sys.executable, "-c", LEAVE_THE_SESSION, "2")
    run = sqlite_shell.start("run", "job", *command, wrap=before)
    pid, stranger = int(sqlite_shell.file("pid")), int(sqlite_shell.file("stranger"))
    (guard,) = (one for one in _children(run.pid) if one != stranger)
    os.kill(guard, signal.SIGKILL)
    try:
        run.wait(5)
        assert not alive(pid)
        assert alive(stranger)
    finally:
        _end(pid, stranger)


def test_orphans_that_end_are_reaped_while_the_command_runs(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start(
        "run", "job", "--", "sh", "-c", "for i in 1 2 3; do (true &); done; echo 1 >done; sleep 60"
    )
    sqlite_shell.file("done")
    (guard,) = _children(run.pid)
    until(lambda: len(_children(guard)) == 1)


@contextmanager
def _held_back(pid: int) -> Iterator[None]:
    """Stop a process so that no signal but SIGKILL makes it go on, as a busy machine might for a while."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert trace(request, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(pid, 0)
    try:
        yield
    finally:
        trace(PTRACE_DETACH, pid, None, None)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _end(*pids: int) -> None:
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)

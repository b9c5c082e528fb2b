"""The guard of `leasehold run`, and the pipes between the two, in states that a whole run seldom reaches."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold.cli.run import processes
from leasehold.cli.run.processes import NONE_LEFT, NUMBER, Child, Pipes

ASKED_TWICE = """
import os
from leasehold.cli.run import guard

signal_group = os.killpg

def noted(group, number):
    with open("found", "a") as file:
        file.write("its own " if os.path.exists(f"/proc/{group}") else "anybody's ")
    signal_group(group, number)

os.killpg = noted
child, its_guard = guard.fork_guarded(["sleep", "60"], grouped=True)
child.start({})
for _ in range(2):
    its_guard.kill_all()
    child.none_left = False
    child.await_none_left()
its_guard.dismiss()
"""
"""A guard that is asked twice to kill all, as by a run whose command does not end at once."""

STOPPED = """
import os, signal, sys, time
from leasehold._runtimes.clock import boottime
from leasehold.cli.run.guard import fork_guarded

child, guard = fork_guarded(["sleep", "60"], grouped=True)
child.start({})
os.kill(guard.pid, signal.SIGSTOP)
for _ in range(int(sys.argv[1])):
    guard.kill_at(boottime() - 1)
guard.kill_at(boottime() + 60)
os.kill(guard.pid, signal.SIGCONT)
time.sleep(0.5)
print(child.ended())
guard.kill_all()
child.await_none_left()
guard.dismiss()
print("done")
"""
"""A guard that is stopped while many leases are confirmed."""

INHERITED = """
import os, sys
from leasehold.cli.run.guard import fork_guarded

def close_each(low, high, really=os.closerange):
    with open("tried", "a") as file:
        print(high - low, file=file)
    really(low, min(high, 256))

open_ones = os.listdir

def unknown(folder):
    raise FileNotFoundError(folder)

open("tried", "x").close()
os.sysconf, os.closerange = lambda name: 1 << 30, close_each
if sys.argv[1] == "without /proc":
    os.listdir = unknown
of_a_reader, standard_output = os.pipe()
os.dup2(standard_output, 200)
child, guard = fork_guarded(["sleep", "60"], grouped=True)
folder = f"/proc/{guard.pid}/fd"
ours = os.readlink("/proc/self/fd/200")
print(ours in [os.readlink(f"{folder}/{number}") for number in open_ones(folder)])
child.start({})
guard.kill_all()
child.await_none_left()
guard.dismiss()
"""
"""A system that lets a process open a billion files, and cannot close a range of descriptors at once."""


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, Pipes]]:
    reports, report = os.pipe()
    os.set_blocking(reports, False)
    others = Pipes(*os.pipe(), *os.pipe())
    yield reports, report, others
    for one in (reports, report, others.wait_for, others.go, others.refusal, others.refuse):
        os.close(one)


def _run(script: str, *arguments: str, folder: Path) -> str:
    words = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_report_that_another_thread_has_read_ends_the_wait(
    pipes: tuple[int, int, Pipes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that is passed on while all are killed reads the reports, too."""
    reports, report, others = pipes
    child = Child(os.getpid(), others, reports, os.getpid(), True, frozenset())
    select = processes.select.select

    def late(*given: Any) -> Any:
        child.ended()
        return select(*given)

    monkeypatch.setattr(processes, "select", SimpleNamespace(select=late))
    os.write(report, NUMBER.pack(NONE_LEFT))
    waiting = threading.Thread(target=child.await_none_left)
    waiting.start()
    waiting.join(5)
    missed = waiting.is_alive()
    os.write(report, NUMBER.pack(NONE_LEFT))
    waiting.join(5)
    assert not missed


def test_a_group_that_was_reaped_is_not_killed_again(tmp_path: Path) -> None:
    _run(ASKED_TWICE, folder=tmp_path)
    assert (tmp_path / "found").read_text() == "its own "


def test_a_guard_that_was_stopped_heeds_the_last_of_many_deadlines(tmp_path: Path) -> None:
    assert _run(STOPPED, "600", folder=tmp_path) == "None\ndone\n"


def test_a_guard_that_reads_nothing_does_not_keep_a_run_from_renewing(tmp_path: Path) -> None:
    assert _run(STOPPED, "20000", folder=tmp_path).endswith("done\n")


@pytest.mark.parametrize(("system", "numbers"), [("usual", range(300)), ("without /proc", range(1 << 29, 1 << 31))])
def test_the_guard_closes_what_is_open_and_not_each_number_that_could_be(
    tmp_path: Path, system: str, numbers: range
) -> None:
    """Where the kernel closes no range at once, a limit of a billion takes minutes."""
    assert _run(INHERITED, system, folder=tmp_path) == "False\n"
    assert sum(map(int, (tmp_path / "tried").read_text().split())) in numbers

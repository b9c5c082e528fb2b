"""``--stalls SECONDS``: find the tests that need a quick machine, by stopping each worker again and again.

On a busy machine a process may get no processor for up to a second, at any moment. That is rare, so a test that cannot
bear it fails once in hundreds of runs. Here a child of each worker stops the worker at random, for up to so many
seconds, and lets it go on. A test that fails then measures the machine, or has a lease or a limit that is too short.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.plugins.leaks import lasting

BETWEEN = (2.0, 6.0)
"""Least and most time between two stops, as a multiple of the longest stop."""


_children: list[subprocess.Popen[bytes]] = []
"""Kept, for a child that runs must not be collected: Python warns of it, in whatever test that happens."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the child, in whatever process runs tests."""
    longest = session.config.getoption("--stalls")
    if longest and (hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None)):
        lasting.add(start(longest).pid)


def start(longest: float) -> subprocess.Popen[bytes]:
    """Start a child that stops this process; it ends when this process does."""
    command = [sys.executable, "-m", "support.plugins.stalls", str(os.getpid()), str(longest)]
    # In a session of its own: Ctrl-C must not end it while this process is stopped.
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True)
    _children.append(child)
    return child


def stall(process: int, longest: float) -> None:
    """Stop the parent process at random until it is gone."""
    while os.getppid() == process:
        time.sleep(longest * random.uniform(*BETWEEN))
        try:
            os.kill(process, signal.SIGSTOP)
            time.sleep(longest * random.random())
        finally:
            os.kill(process, signal.SIGCONT)


if __name__ == "__main__":
    try:
        stall(int(sys.argv[1]), float(sys.argv[2]))
    except ProcessLookupError:  # it has ended
        pass

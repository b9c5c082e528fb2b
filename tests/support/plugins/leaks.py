"""The check that no thread of the library, no child process and no socket outlives a test."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold_lab.servers.base import reserved

OURS = ("leasehold-", "fault-proxy")
"""How the names of our threads begin."""

LINGER = 3.0
"""Seconds that a test's threads, children and sockets have to end after it."""

FAILED = pytest.StashKey[bool]()
"""Set on a test that failed. Its traceback keeps objects alive, so it is not checked for leaks."""

lasting: set[int] = set()
"""Process ids of servers that outlive a test."""


def alive() -> set[str]:
    """Return the threads of the library, the child processes and the sockets of this process."""
    threads = {
        f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate() if thread.name.startswith(OURS)
    }
    return threads | children() | sockets()


def children() -> set[str]:
    """Return the child processes of this one that have not been waited for."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{thread}/children").read_text().split()
        except OSError:  # the thread ended
            continue
        for pid in pids:
            command = _command(pid)
            if int(pid) not in lasting and "resource_tracker" not in command and "forkserver" not in command:
                found.add(f"child {pid} {command[:60]}".rstrip())
    return found


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def sockets() -> set[str]:
    """Return the open sockets of this process."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the file descriptor of this very search
            continue
        if target.startswith("socket:") and int(number) not in reserved:
            found.add(target)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note that a test failed."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a thread of ours, a child process or a socket outlives the test."""
    if request.node.get_closest_marker("leaks"):
        yield
        return
    request.node.stash[FAILED] = False  # it may be run again
    before = alive()
    yield
    if request.node.stash.get(FAILED, False):
        return
    until = time.monotonic() + LINGER
    while leaked := alive() - before:
        if time.monotonic() > until:
            pytest.fail("the test leaves behind: " + ", ".join(sorted(leaked)), pytrace=False)
        gc.collect()
        time.sleep(0.02)

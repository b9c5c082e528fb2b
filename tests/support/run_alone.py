"""A test that has failed twice is run once more alone and afresh, while the other workers of the run stand still.

What lives by the clock fails where the machine has too much to do, and in the crowd it does so again. Each worker holds
a place in one room while it runs a test. Who needs the room for itself first shuts the door, so that nobody comes in
any more, and then waits, for a limited time, until those inside have left.

A test that broke off may also have left a server as no test expects it. So what the worker's tests share, of whatever
scope, is ended before that run and made anew, for it and for those that follow.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

AT_LAST = 3
"""The run of a test that is made alone: there is no other after it."""

LEAVES_WITHIN = 30.0
"""Seconds that the others get for what they are at. A few tests take longer, and go on beside it."""


class Room:
    """Two lock files that all workers of one run share."""

    def __init__(self, folder: Path, run: str) -> None:
        self._paths = [folder / f"leasehold-tests-{run}-{name}" for name in ("door", "inside")]
        mode = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._door, self._inside = (os.open(path, mode, 0o600) for path in self._paths)

    def enter(self) -> None:
        """Go in beside others, as soon as nobody wants to be alone."""
        fcntl.flock(self._door, fcntl.LOCK_SH)
        fcntl.flock(self._inside, fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def enter_alone(self, within: float = LEAVES_WITHIN) -> bool:
        """Let nobody in any more, and wait until the others have left; return whether they did."""
        fcntl.flock(self._inside, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_EX)
        until = time.monotonic() + within
        while True:
            try:
                fcntl.flock(self._inside, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)
            else:
                return True

    def leave(self) -> None:
        """Go out, and open the door."""
        fcntl.flock(self._inside, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the files. Other workers have them open, and who ends without a word has left, too."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        os.close(self._door)
        os.close(self._inside)


class Alone:
    """The plugin of one worker."""

    def __init__(self, room: Room) -> None:
        self._room = room

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Be in the room for all runs of a test; the wait for a place counts against no timeout."""
        self._room.enter()
        try:
            return (yield)
        finally:
            self._room.leave()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Make the last run alone, with nothing that was set up before it."""
        if getattr(item, "execution_count", 1) == AT_LAST:
            self._room.enter_alone()
            end_what_is_shared(item.session)

    def pytest_sessionfinish(self) -> None:
        """Leave nothing behind."""
        self._room.close()


def end_what_is_shared(session: pytest.Session) -> None:
    """Run the finalizers of all scopes, as pytest does at its end: between two runs the other plug-in has them."""
    plugin: Any = session.config.pluginmanager.get_plugin("rerunfailures")
    kept = plugin.suspended_finalizers
    state = session._setupstate
    state.stack.update(kept)
    kept.clear()
    state.teardown_exact(None)


def join(config: pytest.Config) -> None:
    """Take part, in a worker of a run that has several."""
    run = getattr(config, "workerinput", {}).get("testrunuid")
    if run is not None:
        config.pluginmanager.register(Alone(Room(Path(tempfile.gettempdir()), run)), "leasehold-alone")


def hurry(config: pytest.Config) -> None:
    """Let a worker tell the others of the runs of its tests at once.

    It does so by a message that nobody answers, and one that is answered: the kernel keeps the second back until the
    first is confirmed, for 40 ms, in each test.
    """
    line = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(line, socket.socket):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

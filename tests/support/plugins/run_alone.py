"""A test that measures time runs in quiet, and the last run of a test that failed runs alone: other workers wait.

Each worker is in one room while it runs a test. There are three kinds of tests, by the mark ``timing``:

- A plain test shares the room with all other plain ones. So does a test with the mark ``timing(beside="all")``, which
  subtracts what the machine was late by, or has a limit of several seconds.
- A test that measures time has the mark ``timing``. It shares the room only with others of this kind, which mostly
  wait, too: `QUIET` workers begin with them.
- A test that measures what a processor does has the mark ``timing(beside="nobody")``, and is alone.

A quiet test lets no other enter, and waits for a limited time until those inside have left. Tests that only compute,
at a lower priority, are not in the room: they go on, except beside a test that is alone. So the first workers begin
with the tests that measure time, while the others compute (`arrange`). A worker stays in the room from one such test to
the next, unless a test waits to be alone: to empty the room takes as long as the longest test inside.

Servers may be in an unexpected state after the failure. So the fixtures that the tests of the worker share are ended
before that run, and are made anew.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Generator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from support.plugins import background

LAST = 3
"""The run of a test that is its last."""

LEAVES_WITHIN = 30.0
"""Seconds that the other workers have to finish their tests. A few tests take longer, and go on."""

COMPUTED_WITHIN = 120.0
"""The same for tests that compute."""

QUIET = 5
"""How many workers begin with the tests that measure time. Most of these wait: they use a sixth of a processor."""


class Room:
    """Five lock files that all workers of one run share.

    A test that waits to be alone holds ``door``, so that no test that measures overtakes it. ``quiet`` is shared by
    those that measure, and held by one that is alone; others need it for a moment to enter. ``inside`` is shared by
    the others. Tests that compute share ``computing``, and need ``still`` for a moment to begin; one that is alone has
    it.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._paths = [
            folder / f"leasehold-tests-{run}-{name}" for name in ("door", "quiet", "inside", "still", "computing")
        ]
        mode = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._locks = [os.open(path, mode, 0o600) for path in self._paths]
        self._door, self._quiet, self._inside, self._still, self._computing = self._locks

    def enter(self) -> None:
        """Enter alongside others, as soon as no test needs quiet."""
        fcntl.flock(self._quiet, fcntl.LOCK_EX)
        fcntl.flock(self._inside, fcntl.LOCK_SH)
        fcntl.flock(self._quiet, fcntl.LOCK_UN)

    def compute(self) -> None:
        """Begin to compute, as soon as no test is alone."""
        fcntl.flock(self._still, fcntl.LOCK_SH)
        fcntl.flock(self._computing, fcntl.LOCK_SH)
        fcntl.flock(self._still, fcntl.LOCK_UN)

    def enter_quiet(self, within: float = LEAVES_WITHIN) -> bool:
        """Let only tests enter that measure, and wait until the others have left; return whether they did."""
        return self._enter(fcntl.LOCK_SH, within)

    def enter_alone(self, within: float = LEAVES_WITHIN, computed_within: float = COMPUTED_WITHIN) -> bool:
        """Let no other enter or compute, and wait until all have left; return whether they did."""
        have_left = self._enter(fcntl.LOCK_EX, within)
        fcntl.flock(self._still, fcntl.LOCK_EX)
        return _unused(self._computing, computed_within) and have_left

    def _enter(self, how: int, within: float) -> bool:
        self.leave()
        fcntl.flock(self._door, fcntl.LOCK_EX if how == fcntl.LOCK_EX else fcntl.LOCK_SH)
        fcntl.flock(self._quiet, how)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        return _unused(self._inside, within)  # nobody enters before `leave`; another that measures may look

    def is_wanted_alone(self) -> bool:
        """Return whether a test waits to be alone."""
        try:
            fcntl.flock(self._door, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._door, fcntl.LOCK_UN)
        return False

    def leave(self) -> None:
        """Leave, and let others enter."""
        for lock in (self._inside, self._computing, self._still, self._quiet):
            fcntl.flock(lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the files. Other workers have them open, and a process that ends leaves the room."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        for lock in self._locks:
            os.close(lock)


def _unused(lock: int, within: float) -> bool:
    """Wait until no process shares a lock; return whether that was so in time."""
    until = time.monotonic() + within
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        else:
            fcntl.flock(lock, fcntl.LOCK_UN)
            return True


class Alone:
    """The plugin of one worker."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._quiet = ""
        """Which tests may be in the room with this worker, if it measures time there: a "few" or "nobody"."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        """Stay in the room for all runs of a test. No timeout of a test includes the wait for the room."""
        beside = beside_whom(item)
        if beside == "all":
            if background.computes(item) and background.can_restore():
                self._room.compute()
            else:
                self._room.enter()
        elif beside != self._quiet:
            self._quiet = beside
            if beside == "few":
                self._room.enter_quiet()
            else:
                self._room.enter_alone()
        try:
            return (yield)
        finally:
            if nextitem is None or beside_whom(nextitem) != self._quiet or self._room.is_wanted_alone():
                self._quiet = ""
                self._room.leave()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Make the last run alone, with nothing that was set up before it."""
        if getattr(item, "execution_count", 1) == LAST:
            self._quiet = "nobody"
            self._room.enter_alone()
            end_shared_fixtures(item.session)

    def pytest_sessionfinish(self) -> None:
        """Remove the files."""
        self._room.close()


def beside_whom(item: pytest.Item) -> str:
    """Return what a test may have beside it: "nobody", a "few" tests that measure time, too, or "all" tests."""
    mark = item.get_closest_marker("timing")
    return "all" if mark is None else str(mark.kwargs.get("beside", "few"))


def arrange(items: list[pytest.Item], workers: int) -> None:
    """Sort the tests so that `QUIET` workers measure time while the others compute.

    Then the first one runs those that must be alone: by now little has to be computed that waits for them. Each worker
    begins with its share of the list, and takes from those of others at the end.
    """
    alone = [item for item in items if beside_whom(item) == "nobody"]
    few = [item for item in items if beside_whom(item) == "few"]
    computing = [item for item in items if background.computes(item) and beside_whom(item) == "all"]
    computing.reverse()  # those of the last folders take longest
    first = {*alone, *few, *computing}
    others = [item for item in items if item not in first]
    if workers < 2:
        items[:] = [*computing, *alone, *few, *others]
        return
    quiet = min(QUIET, workers - 1)
    parts = _dealt(few, quiet)
    parts[0] += alone
    parts += _dealt(computing, workers - quiet)
    left = len(items)
    items.clear()
    for worker, part in enumerate(parts):
        share = left // (workers - worker)  # as pytest-xdist divides: a plain test too early would wait for them all
        left -= share
        rest = max(0, share - len(part))
        items += [*part, *others[:rest]]
        del others[:rest]
    items += others


def _dealt(items: list[pytest.Item], hands: int) -> list[list[pytest.Item]]:
    """Deal tests to so many workers, each in the order of the list.

    Tests that share a fixture of their module stay together: each worker would start servers of its own for them.
    """
    most = max(1, len(items) // (2 * hands))  # of one module at once, so that the hands can be equal
    order = {item: number for number, item in enumerate(items)}
    pieces = list[list[pytest.Item]]()
    for shared, group in groupby(items, lambda item: item.path if _shares(item) else None):
        tests = list(group)
        size = 1 if shared is None else most
        pieces += [tests[begin : begin + size] for begin in range(0, len(tests), size)]
    pieces.sort(key=len, reverse=True)
    dealt = [list[pytest.Item]() for _ in range(hands)]
    for piece in pieces:
        min(dealt, key=len).extend(piece)
    return [sorted(hand, key=order.__getitem__) for hand in dealt]


def _shares(item: pytest.Item) -> bool:
    """Return whether a test has a fixture that is made once for its module."""
    info = getattr(item, "_fixtureinfo", None)
    return info is not None and any(found[-1].scope == "module" for found in info.name2fixturedefs.values())


def end_shared_fixtures(session: pytest.Session) -> None:
    """Run the finalizers of all scopes, as pytest does at its end. Between two runs, another plugin keeps them."""
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


def send_at_once(config: pytest.Config) -> None:
    """Let a worker report the runs of its tests without delay.

    For each test it sends a message without a reply, and then one with a reply. The kernel keeps the second back for
    40 ms, until the first is confirmed.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

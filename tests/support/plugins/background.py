"""Tests that only compute run at a lower priority, and start first.

A simulation uses a whole core for minutes. In a run with all tests, those of real servers run at the same time, with
leases of a second, and must get a processor at once. So the tests of some folders run at a lower priority there.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

FOLDERS = {"api", "history", "model_tests", "simulated", "specs"}
"""Folders of tests that mostly compute."""

NICE_STEPS = 10
"""Steps of `nice` (at most 19): such a test gets a tenth of the processor time that others get."""

TIME = 900
"""Seconds that such a test may take, unless it sets another limit."""


def computes(item: pytest.Item) -> bool:
    """Return whether a test is in one of these folders."""
    return _in_folders(item.path, item.config.rootpath)


@functools.cache
def _in_folders(path: Path, root: Path) -> bool:
    return not FOLDERS.isdisjoint(path.relative_to(root).parts)


def give_time(items: Iterable[pytest.Item]) -> None:
    """Raise the time limit of tests that compute."""
    for item in items:
        if computes(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME))


@pytest.fixture(autouse=True)
def in_the_background(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lower the priority of a test that computes, where it can be raised again afterwards."""
    if computes(request.node) and _with_all(request.config) and can_restore():
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, before + NICE_STEPS)
        yield
        os.setpriority(os.PRIO_PROCESS, 0, before)
    else:
        yield


def _with_all(config: pytest.Config) -> bool:
    return bool(config.getoption("--all", True) or config.getoption("--nightly", False))


@functools.cache
def can_restore() -> bool:
    """Return whether this user may raise a priority again, as root may.

    A thread tries it, because each thread has its own priority.
    """
    allowed = list[bool]()

    def lower_and_raise() -> None:
        try:
            before = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, before + 1)
            os.setpriority(os.PRIO_PROCESS, 0, before)
        except OSError:
            return
        allowed.append(True)

    thread = threading.Thread(target=lower_and_raise)
    thread.start()
    thread.join()
    return bool(allowed)

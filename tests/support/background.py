"""Tests that compute and wait for nothing make way for those that live by the clock.

A simulation takes a whole core for minutes. Beside it, tests of real servers with leases of a second would get no turn
when theirs comes. So what stands in these folders runs at a lower priority, and the rest as ever.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Iterator

import pytest

FOLDERS = {"history", "models", "simulated", "specs"}
"""Folders of tests that use no server and no clock but a simulated one."""

NICER = 10
"""Steps by which the priority is lowered, of 19: beside others it gets about a tenth of their time."""

TIME = 900
"""Seconds that such a test may take, unless it says itself: it waits for the others."""


def give_time(items: Iterable[pytest.Item]) -> None:
    """Let what makes way take longer than others may."""
    for item in items:
        if item.path.parent.name in FOLDERS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME))


def put_first(items: list[pytest.Item]) -> None:
    """Let what makes way come first: one worker begins with it, and computes while others wait for servers and clocks.

    A run that has several workers gives each a piece of the list, and who has nothing left takes over from another.
    """
    items.sort(key=lambda item: item.path.parent.name not in FOLDERS)


@pytest.fixture(autouse=True)
def in_the_background(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lower the priority of a test that only computes, where it can be raised again after it."""
    if request.path.parent.name in FOLDERS and may_come_back():
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, before + NICER)
        yield
        os.setpriority(os.PRIO_PROCESS, 0, before)
    else:
        yield


@functools.cache
def may_come_back() -> bool:
    """Say whether who has lowered its priority may raise it again, as root may; a thread tries, which has its own."""
    allowed = list[bool]()

    def there_and_back() -> None:
        try:
            before = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, before + 1)
            os.setpriority(os.PRIO_PROCESS, 0, before)
        except OSError:
            return
        allowed.append(True)

    thread = threading.Thread(target=there_and_back)
    thread.start()
    thread.join()
    return bool(allowed)

"""How tests wait: until something is true, and for a limited time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from leasehold_lab.runtimes.harnesses import Harness


def until(true: Callable[[], object], within: float = 10.0) -> float:
    """Wait until ``true()`` is true; return the seconds that it took."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < within, f"not within {within} s"
        time.sleep(0.005)
    return time.monotonic() - start


async def until_in(harness: Harness, true: Callable[[], object], within: float = 10.0) -> float:
    """Wait until ``true()`` is true, or what it awaits; return the seconds that it took in the harness."""
    start = harness.now()
    while not await _awaited(true()):
        assert harness.now() - start < within, f"not within {within} s"
        await harness.sleep(0.005)
    return harness.now() - start


async def _awaited(answer: object) -> object:
    return await answer if isinstance(answer, Awaitable) else answer

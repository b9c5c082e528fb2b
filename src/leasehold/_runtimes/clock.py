"""The clocks of this machine, read in one place."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

if hasattr(time, "CLOCK_BOOTTIME"):
    # Bound calls of C functions: the engine reads the clock a dozen times for each lock.
    boottime: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    """Return seconds since boot, time asleep included (``CLOCK_BOOTTIME``)."""
    boottime_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    """Return nanoseconds since boot, time asleep included."""
else:  # macOS and Windows: the monotonic clock, which may stand still while the machine sleeps
    boottime = time.monotonic
    boottime_ns = time.monotonic_ns


def wall_us() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000

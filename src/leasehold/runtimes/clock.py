"""The clocks of this machine, read in one place."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def boottime() -> float:
        """Return seconds since boot, time asleep included (``CLOCK_BOOTTIME``)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boottime_ns() -> int:
        """Return nanoseconds since boot, time asleep included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:  # macOS and Windows: the monotonic clock; on macOS and Windows it may stand still while the machine sleeps

    def boottime() -> float:
        """Return the monotonic clock in seconds, the nearest thing this system has."""
        return time.monotonic()

    def boottime_ns() -> int:
        """Return the monotonic clock in nanoseconds."""
        return time.monotonic_ns()


def wall_us() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000

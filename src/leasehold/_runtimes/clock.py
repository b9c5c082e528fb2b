"""What is read from this machine, in one place: its clocks, and random bytes for ids."""

from __future__ import annotations

import os
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


def _random_bytes() -> Callable[[int], bytes]:
    """Return `os.getrandom`, or `os.urandom` where the system has no such call.

    Both ask the kernel in the same way. But `os.urandom` gives up the interpreter lock meanwhile, and with several busy
    threads it must wait to get it back: that takes longer than an id. Ids are never made in advance: a copy of this
    process (a fork, a virtual machine that is restored twice) would have the same ones.
    """
    try:
        os.getrandom(1)
    except (AttributeError, OSError):
        return os.urandom
    return os.getrandom


random_bytes = _random_bytes()
"""Returns so many random bytes, at most 256."""

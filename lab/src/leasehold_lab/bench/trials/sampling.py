"""Samples where a process spends its processor time, with a timer that counts only this time.

The timer interrupts only the main thread, so no other thread is sampled. Time in a system call or in C counts for the
Python function that made the call. The kernel fires the timer at its own ticks, some milliseconds apart.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from types import FrameType

EVERY = 0.001
"""Seconds of processor time between two samples, at best."""

KERNEL = "of it in the kernel: system calls"
"""The name of the time in the kernel. It is listed in addition to the parts, which contain it."""

PARTS = (
    ("/leasehold_lab/bench/", "the benchmark, and the floor"),
    ("/connection/", "transport: sockets, encoding and decoding"),
    ("/leasehold/stores/etcd/http/", "transport: sockets, encoding and decoding"),
    ("/leasehold/stores/", "store: requests and the meaning of answers"),
    ("/leasehold/_engine/", "engine: tickets, leases, watchdog, waiting"),
    ("/leasehold/_runtimes/", "runtime: clocks, timers, threads"),
    ("/leasehold/", "lock and hold objects"),
    ("/asyncio/", "event loop"),
    ("/selectors.py", "event loop"),
)
"""Substrings of file paths, and the part of such a file; the first match counts."""

OTHERS = "other libraries"


def part_of(path: str) -> str:
    """Return the part that a file belongs to."""
    path = path.replace(os.sep, "/")
    return next((part for words, part in PARTS if words in path), OTHERS)


def added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return one profile, with the sum of the seconds for each name."""
    found = dict[str, float]()
    for part in parts:
        for name, seconds in part.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


class Sampling:
    """Samples from its start to its stop."""

    def __init__(self) -> None:
        self._files = Counter[str]()
        self._begin = os.times()

    def start(self) -> None:
        """Start the timer. Must be called in the main thread."""
        self._begin = os.times()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)

    def stop(self) -> dict[str, float]:
        """Stop the timer; return the seconds of processor time by part, and those in the kernel."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        now = os.times()
        kernel, user = now.system - self._begin.system, now.user - self._begin.user
        parts = Counter[str]()
        for path, count in self._files.items():
            parts[part_of(path)] += count
        each = (kernel + user) / max(1, parts.total())
        return {part: count * each for part, count in parts.items()} | {KERNEL: kernel}

    def _sample(self, _: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._files[frame.f_code.co_filename] += 1

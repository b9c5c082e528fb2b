"""Measures by how much the machine is late, so that an upper limit of a time can allow for it.

A thread sleeps for a short time, again and again. What a sleep takes too long is time in which this process got no
processor. The processor time that the process itself used meanwhile does not count: code that blocks the process with
work of its own is not excused. In virtual time nothing is late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from leasehold._runtimes.base import Flavor, Runtime

EVERY = 0.01
"""Seconds of a sleep."""

NOTICED = 0.01
"""The least lateness, in seconds, that counts: every machine has less now and then."""


class Lateness:
    """What one thread measures, from `begin` to `end`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._over = threading.Event()
        self._late: list[tuple[float, float]] = []  # when it was over, and how long it was
        self._slept = now()
        self._thread = threading.Thread(target=self._run, name="leasehold-lateness", daemon=True)

    def begin(self) -> None:
        """Measure from now on."""
        self._slept = self._now()
        self._thread.start()

    def end(self) -> None:
        """Measure no more."""
        self._over.set()
        self._thread.join()

    def since(self, start: float) -> float:
        """Return for how many seconds the machine was late since ``start``, by the clock of the runtime."""
        running = self._now() - self._slept - EVERY  # of a sleep that has lasted too long already
        return sum(late for end, late in list(self._late) if end > start) + max(0.0, running)

    def _run(self) -> None:
        while not self._over.is_set():
            self._slept, used = self._now(), time.process_time()
            time.sleep(EVERY)
            late = self._now() - self._slept - EVERY - (time.process_time() - used)
            if late > NOTICED:
                self._late.append((self._now(), late))


@contextmanager
def measured(runtime: Runtime) -> Generator[Callable[[float], float]]:
    """Measure the lateness during a block; give `Lateness.since`."""
    if runtime.flavor is Flavor.SIMULATED:
        yield lambda start: 0.0
        return
    lateness = Lateness(runtime.now)
    lateness.begin()
    try:
        yield lateness.since
    finally:
        lateness.end()

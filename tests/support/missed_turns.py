"""Measures when this process waited for a processor, as `leasehold verify` does, so that tests can subtract it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from leasehold._runtimes.base import Flavor
from leasehold._runtimes.clock import boottime
from leasehold_lab.history import Stall, paused_for
from leasehold_lab.history.journal import Journal, Record
from leasehold_lab.verify.clients.stall_detector import StallDetector, waited_by_main, waited_by_watchdog

US = "us"

NOTICED = 0.001
EVERY = 0.002
"""The shortest stall, in seconds, and the time between two probes: the bounds here are some milliseconds."""


class Missed:
    """The stalls of this process; complete when the block has ended."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []

    def less(self, begin: float, end: float) -> float:
        """Return the seconds between two moments, less the stalls."""
        return end - begin - paused_for(self.stalls, US, begin, end)

    def total(self) -> float:
        """Return the seconds of all stalls."""
        return sum(stall.end - stall.begin for stall in self.stalls)


@contextmanager
def turns_missed(flavor: Flavor = Flavor.SYNC) -> Generator[Missed]:
    """Record when this process, or the thread that notifies holders in that flavor, waited for a processor."""
    records, over, missed = list[Record](), threading.Event(), Missed()
    waited = waited_by_main if flavor is Flavor.ASYNC else waited_by_watchdog
    detector = StallDetector(
        Journal(US, boottime, records.append), boottime, waited=waited, noticed=NOTICED, every=EVERY
    )

    def probe() -> None:
        while not over.is_set():
            detector.probe()

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield missed
    finally:
        over.set()
        thread.join()
        missed.stalls += [Stall(US, record["t"] - record["for"], record["t"]) for record in records]

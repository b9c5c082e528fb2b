"""When this process waited for a processor: tests subtract it from what they measure, as `leasehold verify` does."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from leasehold._runtimes.base import Flavor
from leasehold._runtimes.clock import boottime
from leasehold_lab.history import Stall, stood_still
from leasehold_lab.history.journal import Journal, Record
from leasehold_lab.verify.clients.stall_detector import Pulse, waited_by_main, waited_by_watchdog

US = "us"

NOTICED = 0.001
EVERY = 0.002
"""Seconds of a wait that is noted, and between two checks: the limits of these tests are some milliseconds."""


class Missed:
    """The waits for a processor; complete when the block has ended."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []

    def less(self, begin: float, end: float) -> float:
        """Return the seconds between two moments, without those in which this process could not run."""
        return end - begin - stood_still(self.stalls, US, begin, end)

    def total(self) -> float:
        """Return the seconds in which this process could not run."""
        return sum(stall.end - stall.begin for stall in self.stalls)


@contextmanager
def turns_missed(flavor: Flavor = Flavor.SYNC) -> Generator[Missed]:
    """Note when this process waited for a processor.

    Of a client of that flavor, the thread that notifies of losses is watched.
    """
    records, over, missed = list[Record](), threading.Event(), Missed()
    waited = waited_by_main if flavor is Flavor.ASYNC else waited_by_watchdog
    pulse = Pulse(Journal(US, boottime, records.append), boottime, waited=waited, noticed=NOTICED, every=EVERY)

    def beat() -> None:
        while not over.is_set():
            pulse.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield missed
    finally:
        over.set()
        thread.join()
        missed.stalls += [Stall(US, record["t"] - record["for"], record["t"]) for record in records]

"""What the machine is late by, as the conformance kit measures it."""

from __future__ import annotations

import time

import pytest

from leasehold_lab.conformance.case_context import CaseContext, Variant
from leasehold_lab.runtimes.harnesses import BlockingHarness, SimulatedHarness
from leasehold_lab.runtimes.lateness import Lateness, measured


class Stopped(Lateness):
    """One that finds a process which was stopped for two seconds in its first sleep."""

    def begin(self) -> None:
        self._late.append((self._now(), 2.0))


def test_time_without_a_processor_counts_from_its_end() -> None:
    lateness, before = Stopped(time.monotonic), time.monotonic()
    lateness.begin()
    assert lateness.since(before) >= 2.0
    assert lateness.since(time.monotonic()) < 2.0


def test_work_of_the_process_itself_is_not_excused() -> None:
    with measured(BlockingHarness().runtime) as late_since:
        begin, used = time.monotonic(), time.process_time()
        while time.process_time() - used < 0.2:
            pass
        waited = time.monotonic() - begin - 0.2  # for a processor: others may use it
        assert late_since(begin) < 0.1 + waited


def test_a_limit_allows_for_what_was_measured_and_no_more() -> None:
    harness = BlockingHarness()
    context = CaseContext(harness, "memory:", Variant.LOCK, lambda start: 5.0)
    context.ended_within(harness.now() - 5.5, 0.0)
    with pytest.raises(AssertionError, match=r"the machine was late by 5\.0 s"):
        context.ended_within(harness.now() - 6.5, 0.0)


def test_nothing_is_late_in_virtual_time() -> None:
    with measured(SimulatedHarness().runtime) as late_since:
        assert late_since(0.0) == 0.0

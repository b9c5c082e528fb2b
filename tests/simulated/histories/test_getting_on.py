"""A run in virtual time without progress is ended, and reports which task blocks it."""

from __future__ import annotations

import pytest

from leasehold._engine.lease import Lease
from leasehold_lab.runtimes import virtual
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.runtimes.virtual import Stuck
from models.history import run
from models.report import report


def never_ends(lease: Lease, *_: object) -> bool:
    """Believe in a hold for ever."""
    return True


async def goes_round(harness: Harness) -> None:
    """Sleep for no time, for ever."""
    while True:
        await harness.sleep(0.0)


def test_who_asks_again_at_once_for_ever_is_named() -> None:
    with pytest.raises(Stuck, match=r"no progress: at 0\.000000 s, .* harness/main ran 1000 times of late"):
        SimulatedHarness(seed=1).run(goes_round)


def test_who_sleeps_between_two_turns_may_take_as_many_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "MOST_IN_A_SECOND", 1000)

    async def many_turns(harness: Harness) -> float:
        for _ in range(5000):
            await harness.sleep(0.005)
        return harness.now()

    assert SimulatedHarness(seed=1).run(many_turns) == pytest.approx(25.0)


def test_a_history_in_which_time_stands_still_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that never ends is put down again and again for a deadline that is over."""
    monkeypatch.setattr(Lease, "check_deadline", never_ends)
    outcome = next(outcome for seed in range(1000, 1100) if not (outcome := run(seed)).ok)
    assert outcome.broken == "Stuck"
    assert "no progress" in report(outcome)
    assert "leasehold-watchdog" in report(outcome)

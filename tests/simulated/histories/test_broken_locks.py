"""Locks that are broken on purpose: the simulation must find them, and show them in a few lines."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from models import __main__ as commands
from models.broken import MISTAKES
from models.history import Outcome, run
from models.power import SIZES
from models.report import failure, picture
from models.scenario import Scenario
from models.shrinking import shrink
from models.system import GOOD

MOST = 1500
"""Seeds within which a broken lock must be found; the hardest is in about one of a hundred histories."""


def found(which: str) -> tuple[int, Outcome]:
    mistake = MISTAKES[which]
    first = random.Random(which).getrandbits(32)
    for seed in range(first, first + MOST):
        outcome = run(seed, mistake.system, mistake.spoilt)
        if mistake.shown_by(outcome):
            return seed - first + 1, outcome
    pytest.fail(f"{which}: not found in {MOST} histories")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", MISTAKES)
def test_a_broken_lock_is_found(which: str) -> None:
    count, outcome = found(which)
    print(f"\nfound by history {count}: {outcome.verdict.violations[0].what}")
    assert run(outcome.scenario.seed, MISTAKES[which].system, GOOD).ok


@pytest.mark.timeout(300)
def test_a_history_that_fails_is_made_small() -> None:
    """Most get as small as the mistake allows; some are stuck, since to leave anything out changes all that follows."""
    which = "no look at the ticket in release.lua"
    mistake, spoilt = MISTAKES[which], MISTAKES[which].spoilt
    outcomes = (run(seed, mistake.system, spoilt) for seed in range(2000))
    fail = filter(mistake.shown_by, outcomes)
    sizes = list[tuple[int, int, int]]()
    for outcome in islice(fail, 7):
        small = shrink(outcome, spoilt)
        assert small.broken == outcome.broken
        assert _size(small.scenario) <= _size(outcome.scenario)
        text = failure(outcome, spoilt)
        assert picture(small) in text
        assert f"--system redis {outcome.scenario.seed}" in text
        sizes.append(_size(small.scenario))
    assert len(sizes) == 7
    assert min(sizes) <= (2, 4, 1)
    assert sum(operations <= 6 for _, operations, _ in sizes) >= 4


def _size(scenario: Scenario) -> tuple[int, int, int]:
    return len(scenario.actors), scenario.operations, len(scenario.strikes)


@pytest.mark.nightly
def test_power_is_told_for_each_mistake_and_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["models", "power", "--seconds", "0.01"])
    assert commands.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(MISTAKES) * len(SIZES)
    assert all(any(line.startswith(which) for which in MISTAKES) for line in lines)

"""Every store on real servers that are broken under load: short runs by day, minutes by night, the same checker."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from leasehold.stores.url import Secret, parse
from leasehold.verify.run import Outcome, Settings, run
from leasehold.verify.sites import PLANS, known, site

SECONDS = 8.0
"""Length of a run by day. A fault that has begun is finished, so it may take longer."""

NIGHT = 120.0

WORK = 30
"""Holds that a run must have seen, however slow the machine: with fewer it shows nothing."""

TURNS = {kind: 2 if len(plan.faults) > 8 else 1 for kind, plan in PLANS.items()}
"""Runs by day of each kind: many faults do not fit into one."""


class Nobody:
    """Watches without a word."""

    def moves(self, seconds: float, of: float, fault: str) -> None:
        """Say nothing."""


def broken(kind: str, seconds: float, seed: str, faults: tuple[str, ...]) -> Outcome:
    """Run on servers of a kind, and fail with the verdict, the seed and the faults unless every promise was kept."""
    plan = PLANS[kind]
    with site(kind) as started:
        settings = Settings(parse(Secret(started.url)), 4, seconds, faults, seed, plan.lease, servers=kind)
        outcome = run(settings, Nobody(), started)
    made = [
        f"{fault.kind} {fault.begin - outcome.begin:.2f}..{fault.end - outcome.begin:.2f}" for fault in outcome.faults
    ]
    where = f"{kind}, seed {seed}, from {outcome.begin:.4f}; faults: {', '.join(made)}"
    assert not outcome.broken, f"{where}\n{outcome.broken}"
    assert outcome.verdict.ok, f"{where}\n{outcome.verdict.report()}"
    return outcome


@pytest.mark.parametrize(("kind", "turn"), [(kind, turn) for kind, turns in TURNS.items() for turn in range(turns)])
def test_broken_servers_break_no_promise(kind: str, turn: int, record_property: Callable[[str, object], None]) -> None:
    keys = [fault.key for fault in PLANS[kind].faults]
    outcome = broken(kind, SECONDS, f"day-{turn}", tuple(keys[turn :: TURNS[kind]]))
    assert sum(hold.granted is not None for hold in outcome.history.holds) >= WORK
    assert outcome.faults, "a run without faults shows nothing"
    record_property("sum:chaos: operations", outcome.verdict.checked)
    record_property("sum:chaos: histories", len({hold.name for hold in outcome.history.holds}))
    record_property("sum:chaos: faults", len(outcome.faults))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", list(PLANS))
def test_broken_servers_break_no_promise_for_minutes(kind: str) -> None:
    seed = os.environ.get("LEASEHOLD_SEED") or f"{random.SystemRandom().getrandbits(32):08x}"
    outcome = broken(kind, NIGHT, seed, tuple(known(kind)))
    made = {fault.kind for fault in outcome.faults}
    assert len(made) > len(PLANS[kind].faults) / 2

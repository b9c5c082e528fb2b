"""Every store on real servers that are broken under load: short runs by day, thousands of histories at night.

A run is a few processes with many threads and tasks that use some tens of names; what happened at one of them is a
history.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from leasehold._url import Secret, parse
from leasehold_lab.verify.clients.forkserver import ForkServer
from leasehold_lab.verify.clients.workload import Load
from leasehold_lab.verify.deployments import PLANS, Deployment, deploy, known
from leasehold_lab.verify.faults.client_faults import KINDS
from leasehold_lab.verify.report.figures import samples
from leasehold_lab.verify.run import Outcome, Settings, impossible_faults, run

SECONDS = {kind: 20.0 if kind in ("redis", "replicas", "sentinel", "cluster") else 8.0 for kind in PLANS}
"""Length of a run by day. A fault that has begun is finished, so it may take longer. Where an operation takes the least
processor time there are the most of them."""

NIGHT = 20.0

NIGHTLY_RUNS = 13
"""Runs of each kind of servers by night, with 40 histories each: more than 5,000 in all."""

WORK = 100
"""Holds that a run must have seen, however slow the machine: with fewer it shows nothing."""

TURNS = {kind: 3 if len(plan.faults) > 8 else 2 for kind, plan in PLANS.items()}
"""Runs by day of each kind, on the same servers: many faults do not fit into one."""

CLIENTS = ("kill", "stall", "block")
LINKS = tuple(fault.key for fault in KINDS.values() if fault.needs_connections)
"""Faults of clients, which all kinds have by day, and of links, of which each kind has others."""

NAMES = {"redlock": 20}
"""Locks of each sort that it can have; 8 where nothing else is said."""

WORKERS = dict.fromkeys(("redis", "replicas", "sentinel", "cluster", "redlock", "sqlite"), 12)
"""Threads or tasks of each client, 6 where nothing else is said: with more, servers of rows and nodes do no more."""

Record = Callable[[str, object], None]


class NoProgress:
    """Shows no progress."""

    def update(self, seconds: float, of: float, fault: str) -> None:
        """Ignore the progress."""


def broken(started: Deployment, forkserver: ForkServer, seconds: float, seed: str, faults: tuple[str, ...]) -> Outcome:
    """Run on these servers, and fail with the verdict, the seed and the faults unless every promise was kept."""
    kind, url = started.kind, parse(Secret(started.url))
    load = Load(names=NAMES.get(kind, 8), work=0.002, patience=2.0, slow=0.04, blocks=0.002, slices=1)
    faults = tuple(fault for fault in faults if fault not in impossible_faults(url))
    settings = Settings(url, 3, seconds, faults, seed, PLANS[kind].lease, load, kind, workers=WORKERS.get(kind, 6))
    outcome = run(settings, NoProgress(), started, forkserver)
    made = [
        f"{fault.kind} {fault.begin - outcome.begin:.2f}..{fault.end - outcome.begin:.2f}" for fault in outcome.faults
    ]
    where = f"{kind}, seed {seed}, from {outcome.begin:.4f}; faults: {', '.join(made)}"
    assert not outcome.broken, f"{where}\n{outcome.broken}"
    assert outcome.verdict.ok, f"{where}\n{outcome.verdict.report()}"
    assert sum(hold.granted is not None for hold in outcome.history.holds) >= WORK, where
    assert outcome.faults, "a run without faults shows nothing"
    return outcome


def by_day(kind: str, turn: int) -> tuple[str, ...]:
    """Return the faults of one turn: all of the servers and clients, and two of links, in some turn."""
    first = 2 * list(PLANS).index(kind)
    links = tuple(LINKS[number % len(LINKS)] for number in (first, first + 1))
    keys = [*(fault.key for fault in PLANS[kind].faults), *CLIENTS]
    return (*keys[turn :: TURNS[kind]], *(links if not turn else ()))  # in one turn: proxies take time


def count(kind: str, outcomes: list[Outcome], record: Record) -> None:
    """Record figures for the summary at the end of all tests."""
    holds = [hold for outcome in outcomes for hold in outcome.history.holds]
    tries = sum(len(outcome.history.tries) for outcome in outcomes)
    record("sum:chaos: histories", sum(len({hold.name for hold in one.history.holds}) for one in outcomes))
    record("sum:chaos: lock operations", 2 * sum(hold.granted is not None for hold in holds) + tries)
    record("sum:chaos: guarded writes", sum(len(outcome.history.writes) for outcome in outcomes))
    record("sum:chaos: faults", sum(len(outcome.faults) for outcome in outcomes))
    record("sum:chaos: seconds for which clients had no processor", round(sum(one.held_up for one in outcomes)))
    for outcome in outcomes:
        for name, values in samples(outcome).items():
            record(f"spread:chaos: {name}" + (f", {kind}" if name == "free after a kill" else ""), values)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted(PLANS, key=lambda kind: -TURNS[kind]))
def test_broken_servers_break_no_promise(kind: str, record_property: Record) -> None:
    with deploy(kind) as started, ForkServer(parse(Secret(started.url)).scheme) as forkserver:
        outcomes = [
            broken(started, forkserver, SECONDS[kind], f"day-{turn}", by_day(kind, turn)) for turn in range(TURNS[kind])
        ]
    count(kind, outcomes, record_property)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", list(PLANS))
def test_thousands_of_histories_on_broken_servers_break_no_promise(kind: str, record_property: Record) -> None:
    seeds = [os.environ["LEASEHOLD_SEED"]] if "LEASEHOLD_SEED" in os.environ else []
    seeds = seeds or [f"{random.SystemRandom().getrandbits(32):08x}" for _ in range(NIGHTLY_RUNS)]
    with deploy(kind) as started, ForkServer(parse(Secret(started.url)).scheme) as forkserver:
        outcomes = [broken(started, forkserver, NIGHT, seed, tuple(known(kind))) for seed in seeds]
    made = {fault.kind for outcome in outcomes for fault in outcome.faults}
    assert len(made) > len(PLANS[kind].faults) / 2
    count(kind, outcomes, record_property)


def test_each_fault_is_made_by_day_on_some_servers() -> None:
    made = {fault for kind in PLANS for turn in range(TURNS[kind]) for fault in by_day(kind, turn)}
    assert made >= {*KINDS, *(fault.key for plan in PLANS.values() for fault in plan.faults)}

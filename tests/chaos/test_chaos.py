"""Every store under load, with faults of its real servers: short runs by day, thousands of histories at night.

A run has a few processes, with many threads and tasks that use some tens of names. The events of one name are one
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

SECONDS = {kind: 12.0 if kind in ("redis", "replicas", "sentinel", "cluster") else 8.0 for kind in PLANS}
"""Seconds of a run by day. A run waits for the end of its last fault, so it may take longer. It is longest for the
systems that do the most operations in the same processor time."""

NIGHT = 20.0
"""Seconds of a run at night."""

NIGHTLY_RUNS = 13
"""Runs of each kind of servers at night, with 40 histories each: more than 5,000 in all."""

WORK = 100
"""The least number of holds in a run, even on a slow machine. A run with fewer holds proves nothing."""

TURNS = {kind: 3 if len(plan.faults) > 8 else 2 for kind, plan in PLANS.items()}
"""Runs of each kind by day, on the same servers. All faults do not fit into one run."""

CLIENTS = ("kill", "stall", "block")
CONNECTIONS = tuple(fault.key for fault in KINDS.values() if fault.needs_connections)
"""Faults of clients, which every kind has by day, and faults of connections, of which each kind has two by day."""

NAMES = {"redlock": 20}
"""Locks of each sort, by kind of servers; 8 by default."""

WORKERS = dict.fromkeys(("redis", "replicas", "sentinel", "cluster", "redlock", "sqlite"), 12)
"""Threads or tasks of each client; 6 by default, since with more the other servers do no more operations."""

Record = Callable[[str, object], None]


class NoProgress:
    """Shows no progress."""

    def update(self, seconds: float, of: float, fault: str) -> None:
        """Ignore the progress."""


def run_with_faults(
    started: Deployment, forkserver: ForkServer, seconds: float, seed: str, faults: tuple[str, ...]
) -> Outcome:
    """Run on these servers. If a promise was broken, fail with the verdict, the seed and the faults."""
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
    assert outcome.faults, "a run without faults proves nothing"
    return outcome


def by_day(kind: str, turn: int) -> tuple[str, ...]:
    """Return the faults of one run. All runs of a kind have all faults of servers and clients, and two of connections.

    Those of connections are in the first run only, since they need proxies, which take time.
    """
    first = 2 * list(PLANS).index(kind)
    connections = tuple(CONNECTIONS[number % len(CONNECTIONS)] for number in (first, first + 1))
    keys = [*(fault.key for fault in PLANS[kind].faults), *CLIENTS]
    return (*keys[turn :: TURNS[kind]], *(connections if not turn else ()))


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
def test_promises_are_kept_while_servers_fail(kind: str, record_property: Record) -> None:
    with deploy(kind) as started, ForkServer(parse(Secret(started.url)).scheme) as forkserver:
        outcomes = [
            run_with_faults(started, forkserver, SECONDS[kind], f"day-{turn}", by_day(kind, turn))
            for turn in range(TURNS[kind])
        ]
    count(kind, outcomes, record_property)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", list(PLANS))
def test_promises_are_kept_in_thousands_of_histories_while_servers_fail(kind: str, record_property: Record) -> None:
    seeds = [os.environ["LEASEHOLD_SEED"]] if "LEASEHOLD_SEED" in os.environ else []
    seeds = seeds or [f"{random.SystemRandom().getrandbits(32):08x}" for _ in range(NIGHTLY_RUNS)]
    with deploy(kind) as started, ForkServer(parse(Secret(started.url)).scheme) as forkserver:
        outcomes = [run_with_faults(started, forkserver, NIGHT, seed, tuple(known(kind))) for seed in seeds]
    made = {fault.kind for outcome in outcomes for fault in outcome.faults}
    assert len(made) > len(PLANS[kind].faults) / 2
    count(kind, outcomes, record_property)


def test_each_fault_is_injected_by_day_on_some_servers() -> None:
    made = {fault for kind in PLANS for turn in range(TURNS[kind]) for fault in by_day(kind, turn)}
    assert made >= {*KINDS, *(fault.key for plan in PLANS.values() for fault in plan.faults)}

"""Histories in which holds move between tasks, holds are dropped, and clients are closed while in use."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from leasehold._engine import closing
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Later, Lease, State
from leasehold._engine.watchdog.watchdog import Watchdog
from leasehold_lab.history.journal import Journal, Record
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.verify.clients import transfers
from leasehold_lab.verify.clients.transfers import TransferUse
from leasehold_lab.verify.clients.workload import Load, Target, Worker
from models import running
from models.history import Outcome, run
from models.report import failure
from models.scenario import Kind, draw
from models.sql.postgres import PostgresModel
from models.sql.postgres_transport import SimulatedPostgres
from models.systems import SYSTEMS
from support.plugins.tiers import repetitions

FIRST = 20_261_124
EACH = repetitions(20, 10)
"""Histories of each system in a normal run."""

NIGHTLY = 100_000
NIGHT_PARTS = 10

MOST = 1000
"""Histories within which a mistake must be found."""

Note = Callable[[str, object], None]
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_promise_is_kept(system: str, record_property: Note) -> None:
    dropped = lost = 0
    for seed in range(FIRST, FIRST + EACH):
        outcome = run(seed, system, passed=True)
        assert outcome.ok, failure(outcome)
        dropped += sum(hold.dropped is not None for hold in outcome.history.holds)
        lost += sum(hold.notified is not None for hold in outcome.history.holds)
    assert 0 < dropped < lost
    record_property("sum:simulation: histories of holds that are passed on", EACH)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(NIGHT_PARTS))
def test_every_promise_is_kept_in_a_nightly_run(part: int, record_property: Note) -> None:
    first, count = secrets.randbits(40), NIGHTLY // NIGHT_PARTS
    tally = running.run_many(first, count, 1, passed=True)
    print(f"\nfrom seed {first}\n{tally.summary()}")
    record_property("sum:simulation: histories of holds that are passed on", tally.count)
    assert not tally.failed, "\n\n".join(tally.failures)
    assert tally.passed == tally.count == count


def test_clients_of_every_system_are_closed_while_in_use() -> None:
    for system in SYSTEMS:
        scenarios = [draw(seed, system, SYSTEMS[system].menu, passed=True) for seed in range(EACH)]
        assert any(scenario.hits(Kind.CLOSE) for scenario in scenarios)


def test_transfers_in_some_scenarios_do_not_change_the_other_scenarios() -> None:
    drawn = [draw(seed, "redis", SYSTEMS["redis"].menu) for seed in range(400)]
    assert 60 < sum(scenario.passed > 0 for scenario in drawn) < 140
    for scenario in drawn:
        assert scenario == draw(scenario.seed, "redis", SYSTEMS["redis"].menu, passed=scenario.passed > 0)


@pytest.mark.parametrize("use", TransferUse)
def test_transferred_holds_keep_every_promise_for_each_use(use: TransferUse, monkeypatch: Patch) -> None:
    if use is TransferUse.REENTERED:
        monkeypatch.setattr(
            transfers, "choose_use", lambda worker, target: use if target.reenters else TransferUse.PLAIN
        )
    else:
        monkeypatch.setattr(transfers, "choose_use", lambda worker, target: use)
    for seed in range(FIRST, FIRST + 10):
        outcome = run(seed, "redis", passed=True)
        assert outcome.ok, failure(outcome)


class Least(Random):
    """Draws the least of all numbers: the first of two holds is released first, after half a lease."""

    def random(self) -> float:
        return 0.0


def test_a_loss_is_recorded_when_the_first_of_two_holds_was_released_before(monkeypatch: Patch) -> None:
    """Else the lock counts as held for ever, and its next holder as a second one."""
    monkeypatch.setattr(transfers, "choose_use", lambda *_: TransferUse.REENTERED)
    harness, records = SimulatedHarness(1), list[Record]()

    async def body(_: Harness) -> None:
        machine = harness.machine("c0")
        client = machine.client(SimulatedPostgres(PostgresModel(harness.scheduler)))
        journal = Journal("c0.0", harness.now, records.append)
        worker = Worker(client, Load(), journal, lambda *_: True, machine.sleep, harness.now, Least(0))
        target = Target(client.rlock("a", lease=2.0), reenters=True)
        job = machine.spawn(partial(transfers.transfer, worker, target))
        await harness.sleep(1.5)
        await machine.spawn(client.close).result()
        await job.result()

    harness.run(body)
    (lost,) = (record for record in records if record["is"] == "notified")
    assert 1.0 < lost["t"] < 2.0


# --- mistakes ------------------------------------------------------------------------------------------------------


def given_up_when_its_acquirer_has_ended(patch: Patch) -> None:
    """An earlier rule: a lease ended with the task that acquired it, without a notice."""
    plain = Watchdog._needs_renewal

    def is_to_renew(watchdog: Watchdog, lease: Lease, now: float, later: Later | None) -> bool:
        entry = lease.entry
        if entry is None or entry.caller.alive():  # type: ignore[attr-defined]
            return plain(watchdog, lease, now, later)
        lease.begin_release()
        watchdog.forget(lease)
        watchdog.retry_release(lease.name, lease.ticket)
        return False

    patch.setattr(Watchdog, "_needs_renewal", is_to_renew)


def given_up_without_a_notice(patch: Patch) -> None:
    plain = Watchdog._release_abandoned

    def give_up(watchdog: Watchdog, lease: Lease, later: Later | None) -> None:
        if lease.state is State.QUEUED:
            plain(watchdog, lease, later)
            return
        lease.begin_release()
        watchdog.forget(lease)
        watchdog.retry_release(lease.name, lease.ticket)

    patch.setattr(Watchdog, "_release_abandoned", give_up)


def never_given_up(patch: Patch) -> None:
    patch.setattr(Lease, "is_reachable", lambda lease: True)


def closed_without_a_notice(patch: Patch) -> None:
    patch.setattr(closing, "end_lease", lambda lease, calls: lease.begin_release())


def closed_before_blocks_have_ended(patch: Patch) -> None:
    async def nobody_waits(engine: Engine, *_: object) -> None:
        for lease in engine.watchdog.leases():
            lease.scopes = ()

    patch.setattr(closing, "notify_holders", nobody_waits)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("system", ["redis", "etcd", "postgres"])
@pytest.mark.parametrize(
    "mistake",
    [
        given_up_when_its_acquirer_has_ended,
        given_up_without_a_notice,
        never_given_up,
        closed_without_a_notice,
        closed_before_blocks_have_ended,
    ],
)
def test_a_mistake_is_found(mistake: Callable[[Patch], None], system: str, monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    count, outcome = found(system)
    what = outcome.error if outcome.verdict.ok else outcome.verdict.violations[0].what
    print(f"\nfound by history {count}: {type(outcome.error).__name__}: {what}")


def found(system: str) -> tuple[int, Outcome]:
    for seed in range(FIRST, FIRST + MOST):
        outcome = run(seed, system, passed=True)
        if not outcome.ok:
            return seed - FIRST + 1, outcome
    pytest.fail(f"not found in {MOST} histories")

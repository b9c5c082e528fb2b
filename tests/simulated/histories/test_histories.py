"""Random histories of the shipped stores on models of their servers: each must keep every promise.

Their number is fixed: with a time budget, some would be skipped silently. They run in parts, to use all processors.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable

import pytest

from leasehold_lab.history.journal import Record
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models import __main__ as commands
from models import clients, running, wakeups
from models.history import run
from models.scenario import Assumptions, Kind, Scenario, draw
from models.systems import SYSTEMS

HISTORIES = 3_000
PARTS = 6
FIRST = 20_261_122
"""The first seed by day: each build runs the same histories; each night runs others."""

BY_NIGHT = 997_000
NIGHT_PARTS = 50

REPLAYED = 100

HAND_OVERS = 5_000
HAND_OVERS_BY_NIGHT = 1_000_000

Note = Callable[[str, object], None]


def check_histories(first: int, count: int, note: Note) -> None:
    tally = running.run_many(first, count, 1)
    print(f"\nfrom seed {first}\n{tally.summary()}")
    note("sum:simulation: histories", tally.count)
    note("sum:simulation: operations", tally.operations)
    assert not tally.failed, "\n\n".join(tally.failures)
    assert tally.count == count
    assert tally.histories.keys() == running.SHARES.keys()
    assert not tally.unreached(), "some transitions of a hold never happened"
    assert min(tally.broken, tally.waited, tally.lost, tally.fenced_off) > 0


def possible() -> set[str]:
    menus = {name: (*system.menu.kept, *system.menu.broken, Kind.CLOSE) for name, system in SYSTEMS.items()}
    return {f"{name} {kind.name.lower()}" for name, kinds in menus.items() for kind in kinds}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept(part: int, record_property: Note) -> None:
    count = HISTORIES // PARTS
    check_histories(FIRST + part * count, count, record_property)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(NIGHT_PARTS))
def test_every_promise_is_kept_by_night(part: int, record_property: Note) -> None:
    check_histories(secrets.randbits(40), BY_NIGHT // NIGHT_PARTS, record_property)


@pytest.mark.timeout(600)
def test_the_same_seed_gives_the_same_history_in_another_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record_property: Note
) -> None:
    monkeypatch.setattr("sys.argv", ["models", "replay", "--histories", str(REPLAYED)])
    assert commands.main() == 0, capsys.readouterr().out
    assert f"replayed={REPLAYED} differing=0" in capsys.readouterr().out
    record_property("sum:simulation: replayed", REPLAYED)


def test_another_seed_gives_another_history() -> None:
    pieces = [running.digests((name, 1, 5)) for name in SYSTEMS]
    digests = Counter(digest for piece in pieces for _, _, digest in piece)
    assert max(digests.values()) == 1


def check_hand_overs(count: int, note: Note) -> None:
    first = secrets.randbits(40)
    for share, loss in ((9, 0.5), (1, 1.0)):
        found = wakeups.hand_over_many(first, count * share // 10, loss, 1)
        print(f"\nfrom seed {first}, {loss:.0%} lost: {found}")
        assert found.stuck == 0
        assert found.longest <= wakeups.BOUND
        assert found.lost > 0
        assert found.handed >= count * share // 10
        note("sum:simulation: hand-overs", found.handed)


@pytest.mark.timeout(600)
def test_no_waiter_is_stuck_when_messages_are_lost(record_property: Note) -> None:
    check_hand_overs(HAND_OVERS, record_property)


@pytest.mark.nightly
@pytest.mark.timeout(14_400)
def test_no_waiter_is_stuck_when_messages_are_lost_by_night(record_property: Note) -> None:
    check_hand_overs(HAND_OVERS_BY_NIGHT, record_property)


def test_parts_make_the_whole() -> None:
    pieces = list(running.plan(1000, 777))
    seeds = sorted(seed for _, first, count in pieces for seed in range(first, first + count))
    assert seeds == list(range(1000, 1777))
    assert HISTORIES % PARTS == BY_NIGHT % NIGHT_PARTS == 0
    assert HISTORIES + BY_NIGHT == 1_000_000


# --- what histories have shown -------------------------------------------------------------------------------------


@pytest.fixture
def holds_of_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no hold outlive its first lease, as when these failures were found: else the seeds give other histories."""
    monkeypatch.setattr(clients, "LONGEST", 1.0)


@pytest.mark.usefixtures("holds_of_a_lease")
def test_an_etcd_ticket_whose_claim_is_under_way_is_not_taken_out() -> None:
    """A waiter's time ends while its claim is under way: to remove its key then would remove a holder's key."""
    from models.history import play
    from models.scenario import Actor

    near = Actor(1.0, 10.0, (0.0001, 0.001), ((1, 2, 3), (4, 5, 6, 7)))
    far = Actor(1.0, 20.0, (0.001, 0.4), ((11, 12), (13, 14, 15)))
    for seed in range(150):
        options = frozenset({"fixed"})
        scenario = Scenario(seed, "etcd", Assumptions.KEPT, 1.0, options, (near, far, far), (), ())
        outcome = play(scenario)
        assert outcome.ok, outcome.verdict.report()


@pytest.mark.usefixtures("holds_of_a_lease")
def test_a_claim_on_zookeeper_whose_ticket_expires_meanwhile_raises_no_key_error() -> None:
    """A client is paused in a claim until its ticket expires, and its nodes are removed meanwhile."""
    outcome = run(20_265_375, "zookeeper")
    assert any(fault.kind is Kind.SUSPEND for fault in outcome.faults), "the seed gives another history by now"
    assert outcome.ok, outcome.error or outcome.verdict.report()


def test_client_timestamps_are_converted_to_true_time() -> None:
    """A client's clock may be a day ahead. The hold of a killed client ends at its recorded deadline, in true time."""
    harness, records = SimulatedHarness(1), list[Record]()
    machine = harness.machine("c0", offset=1000.0, rate=2.0)
    journal = clients.TrueJournal("c0.0", harness, machine, records.append)
    journal.granted(1, 7, since=1002.0, deadline=1006.0)
    journal.checked(1, 2.5, 1006.0)
    granted, checked = records
    assert (granted["since"], granted["deadline"]) == (1.0, 3.0)
    assert (checked["at"], checked["deadline"]) == (2.5, 3.0)


def test_each_kind_of_fault_strikes_each_system_that_has_it() -> None:
    struck = set[str]()
    for system, first, count in running.plan(FIRST, HISTORIES):
        for seed in range(first, first + count):
            scenario = draw(seed, system, SYSTEMS[system].menu)
            struck.update(f"{system} {strike.kind.name.lower()}" for strike in scenario.strikes)
    assert struck == possible()


def test_every_kind_of_fault_belongs_to_a_system() -> None:
    assert {kind.name.lower() for kind in Kind} == {name.partition(" ")[2] for name in possible()}

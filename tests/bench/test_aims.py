"""What was aimed at, beside what a run reached: met, missed, or not measured."""

from __future__ import annotations

from leasehold_lab.bench.contestants import CONTESTANTS
from leasehold_lab.bench.measures import MEASURES
from leasehold_lab.bench.report.aims import aims
from leasehold_lab.bench.result import Entry, Result, Row, Sample
from leasehold_lab.bench.trials.trial_pipe import Outcome


def entry(key: str, operations: int, *, cpu: float = 0.5, server: float = 0.0, each: int = 0) -> Entry:
    """Return a contestant that did so much in one second."""
    contestant = next(one for one in CONTESTANTS if one.key == key)
    outcome = Outcome(operations=operations, turns=100, seconds=1.0, cpu=cpu, p50=0.001, p99=0.003, memory=each)
    return Entry(contestant, [Sample(outcome, {}, 0.0, server, each * 100)])


def table(measure: str, *entries: Entry) -> str:
    chosen = next(one for one in MEASURES if one.key == measure)
    return aims(Result([Row(chosen, list(entries))], {}, {}, {})).partition("Where an aim")[0]


def test_rates_are_compared_with_floor_and_peer_and_missed_aims_are_bold() -> None:
    said = table("blocking-1", entry("floor-scripts", 1000), entry("leasehold", 800), entry("redis-py", 500))
    assert "| the floor | ≥ 0.75 × | 0.80 × |" in said
    assert "| redis-py Lock (the floor reaches 2.0 ×) | ≥ 1.7 × | **1.60 ×** |" in said


def test_idle_measures_have_aims_for_processor_time_and_memory() -> None:
    said = table("held-10000", entry("leasehold", 1, cpu=0.02, server=0.005, each=1024))
    assert "| the client's part of one core | ≤ 1 % | **2 %** |" in said
    assert "| the server's part of one core | ≤ 1 % | 0.5 % |" in said
    assert "| the client's memory for each | ≤ 2 KiB | 1 KiB |" in said
    assert "| the server's memory for each | ≤ 250 bytes | **1,024 bytes** |" in said


def test_without_a_measure_there_is_no_table() -> None:
    assert aims(Result([], {}, {}, {})) == ""

"""The short page of performance: the figures of the page of details, and nothing that those do not say."""

from __future__ import annotations

from leasehold_lab.bench.contestants import CONTESTANTS
from leasehold_lab.bench.measures import MEASURES
from leasehold_lab.bench.report import summary
from leasehold_lab.bench.report.markdown import markdown
from leasehold_lab.bench.result import Entry, Result, Row, Sample
from leasehold_lab.bench.trials.trial_pipe import Outcome


def entry(key: str, operations: int) -> Entry:
    contestant = next(one for one in CONTESTANTS if one.key == key)
    outcome = Outcome(operations, 100, 1.0, 0.005, 0.001, 0.003)
    return Entry(contestant, [Sample(outcome, {}, 200.0, 0.002, 0)] if operations else [], "" if operations else "why")


def details(measure: str, **operations: int) -> str:
    chosen = next(one for one in MEASURES if one.key == measure)
    entries = [entry(key.replace("_", "-"), count) for key, count in operations.items()]
    return markdown(Result([Row(chosen, entries)], {}, {}, {}))


FIRST = details("blocking-1", floor_scripts=1000, leasehold=800, redis_py=400, sherlock=640, pottery=100)


def test_a_line_has_rate_floor_and_peers_with_the_fastest_last() -> None:
    page = summary.page(FIRST, "d.md")
    assert "| Acquire + release, 1 thread | 800 | 0.80 | 2.0 × redis-py Lock, 1.25 × sherlock |" in page
    assert "µs of processor time of client + server: Redis 50 + 20 in 2 requests." in page
    assert "†" not in page


def test_a_peer_of_a_later_run_is_marked_and_not_drawn() -> None:
    later = details("blocking-1", floor_scripts=100, leasehold=50, redis_py=5, redisson=100)
    both = FIRST + "\n## Later\n\n" + later.partition("## Measures\n")[2]
    page = summary.page(both, "d.md")
    assert "| 800 | 0.80 | 2.0 × redis-py Lock, 0.50 × Redisson (Java)†, 1.25 × sherlock |" in page
    assert "† of a later run, [on a busy machine](d.md#on-a-busy-machine)" in page
    assert summary.picture(both) == summary.picture(FIRST)
    assert "Redisson" not in summary.picture(both)


def test_a_failed_contestant_has_no_figures() -> None:
    failed = details("blocking-1", floor_scripts=1000, leasehold=800, redis_py=0)
    assert "| 800 | 0.80 | – |" in summary.page(failed, "d.md")
    assert "| Acquire" not in summary.page(details("blocking-1", floor_scripts=0, leasehold=800), "d.md")

"""A server fault excuses overlaps with grants from before it, and waits; it never excuses tokens and loss notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold._url import parse
from leasehold_lab.history import History, Hold, Promise, Try, Violation, Write, check
from leasehold_lab.verify.faults.bounds import Suspension, judge

LOST = Suspension("server-flush", begin=10.0, end=10.1, served=12.0, forgets=11.1)
KEPT = replace(LOST, key="server-freeze", forgets=None)
URL = parse("redis://localhost")


def two(first: tuple[float, float], second: tuple[float, float], tokens: tuple[int, int] = (1, 2)) -> History:
    (a, b), (c, d) = first, second
    return History(
        holds=(
            Hold("1.0", "x", a - 0.01, a, b, b, tokens[0], lease=1.0),
            Hold("2.0", "x", c - 0.01, c, d, d, tokens[1], lease=1.0),
        )
    )


@pytest.mark.parametrize(
    ("history", "excused"),
    [
        (two((9.5, 10.6), (10.3, 10.5)), True),
        (two((9.5, 9.8), (9.7, 9.9)), False),  # before the loss
        (two((10.105, 10.6), (10.3, 10.5)), True),  # requested before the end of the loss, answered after it
        (two((10.2, 10.6), (10.3, 10.5)), False),  # both were granted after it
        (two((9.5, 12.5), (11.5, 12.0)), False),  # more than a lease after it
    ],
    ids=["granted before, overlaps after", "both before", "asked before", "both after", "too long after"],
)
def test_an_overlap_with_a_forgotten_grant_is_excused_for_a_lease(history: History, excused: bool) -> None:
    verdict, outside = judge(history, 1.0, URL, [LOST])
    assert verdict.ok is excused
    assert bool(outside) is excused
    assert verdict.by_promise[Promise.EXCLUSION] == (0 if excused else 1)
    assert not judge(history, 1.0, URL, [KEPT])[0].ok, "a server that forgets nothing excuses no overlap"


@pytest.mark.parametrize(
    ("since", "answered", "excused"),
    [(10.05, 10.9, True), (10.15, 10.2, False)],
    ids=["granted before the loss was over, answered late", "requested again after it"],
)
def test_a_lease_that_counts_from_after_the_loss_is_not_excused(since: float, answered: float, excused: bool) -> None:
    later = answered + 0.01
    history = History(
        holds=(
            Hold("1.0", "x", 9.5, answered, 11.0, 11.0, 1, lease=1.0, since=since),
            Hold("2.0", "x", later, later + 0.01, later + 0.1, later + 0.1, 2, lease=1.0, since=later),
        )
    )
    assert judge(history, 1.0, URL, [LOST])[0].ok is excused


def test_tokens_and_guarded_writes_are_never_excused() -> None:
    backwards = two((9.5, 9.9), (10.3, 10.5), tokens=(2, 1))
    verdict, outside = judge(backwards, 1.0, URL, [LOST])
    assert verdict.by_promise[Promise.TOKENS] > 0
    assert not outside
    stale = History(
        writes=(
            Write("2.0", "x", 0, 2, "2.0", True, 10.2),
            Write("1.0", "x", 1, 1, "1.0", True, 10.3),
        )
    )
    verdict, outside = judge(stale, 1.0, URL, [LOST])
    assert verdict.by_promise[Promise.FENCING] == 1
    assert not outside


def test_concurrent_grants_with_swapped_tokens_count_as_an_overlap() -> None:
    late = History(
        holds=(
            Hold("1.0", "x", 9.9, 10.4, 10.6, 10.6, 1, lease=1.0),  # granted, forgotten, and then answered
            Hold("2.0", "x", 10.2, 10.3, 10.5, 10.5, 2, lease=1.0),
        )
    )
    assert not check(late).ok
    assert not judge(late, 1.0, URL, [])[0].ok
    verdict, outside = judge(late, 1.0, URL, [replace(LOST, end=10.35)])
    assert verdict.ok, verdict.report()
    assert {one.promise for one in outside} >= {Promise.EXCLUSION}


def test_a_refusal_is_excused_only_while_the_servers_are_away() -> None:
    def refused(asked: float) -> Violation:
        return Violation(Promise.AVAILABILITY, (Try("1.0", "x", asked, asked + 0.1),), "")

    assert KEPT.excuses(refused(10.0))
    assert KEPT.excuses(refused(11.9))
    assert not KEPT.excuses(refused(12.1))
    assert not KEPT.excuses(refused(9.8))


def test_a_late_loss_notice_is_never_excused() -> None:
    late = Violation(Promise.LOSS_NOTICE, (Hold("1.0", "x", 9.0, 9.1, 10.0, notified=11.0, deadline=10.0),), "")
    assert not LOST.excuses(late)

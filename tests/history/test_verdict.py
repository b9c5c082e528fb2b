"""The checker finds planted violations, and shows them by as few operations as possible."""

from __future__ import annotations

import time
from dataclasses import replace

from leasehold_lab.history import Bounds, History, Hold, Mode, Promise, Stall, Try, Write, check
from leasehold_lab.history.operations import FOREVER

N = "stock"


def hold(
    who: str, asked: float, granted: float | None, until: float, freed: float | None, token: int | None = None
) -> Hold:
    return Hold(who, N, asked, granted, until, freed, token)


def good(count: int) -> list[Hold]:
    """Make a long history of one exclusive lock in which nothing is wrong."""
    return [hold(f"c{i % 7}", i - 0.5, i + 0.1, i + 0.8, i + 0.9, token=i + 1) for i in range(count)]


def test_a_good_history_has_no_violation() -> None:
    verdict = check(History(holds=tuple(good(500))))
    assert verdict.ok, verdict.report()
    assert verdict.report() == "1000 operations, every promise kept"


def test_a_planted_overlap_is_found_and_shown_by_two_operations() -> None:
    holds = good(2_000)
    holds[1_000] = replace(holds[1_000], until=1_001.4, freed=1_001.5)
    (violation,) = check(History(holds=tuple(holds))).violations
    assert violation.promise is Promise.EXCLUSION
    assert [one.token for one in violation.operations if isinstance(one, Hold)] == [1_001, 1_002]
    assert "2 claims at once, from 1001.1000 to 1001.4000" in str(violation)


def test_swapped_tokens_are_found() -> None:
    holds = good(200)
    holds[100], holds[101] = replace(holds[100], token=102), replace(holds[101], token=101)
    found = check(History(holds=tuple(holds))).violations
    assert {one.promise for one in found} == {Promise.TOKENS}
    late = replace(holds[100], asked=99.0), replace(holds[101], asked=99.0)
    relaxed = check(History(holds=late), Bounds(linearizable=False))
    assert relaxed.ok, "asked for at the same time: fenced off from the start, and no promise of Redlock is broken"


def test_two_grants_with_one_token_are_found() -> None:
    holds = good(10)
    holds[5] = replace(holds[5], token=5)
    assert check(History(holds=tuple(holds))).by_promise[Promise.TOKENS] == 1


def test_permits_beyond_the_limit_are_shown_by_as_few_holds_as_possible() -> None:
    def permits(who: str, begin: float, count: int) -> Hold:
        return Hold(who, N, begin, begin, 10.0, 10.0, mode=Mode.PERMITS, permits=count, limit=6)

    holds = (permits("a", 1, 1), permits("b", 2, 3), permits("c", 3, 1), permits("d", 4, 4))
    (violation,) = check(History(holds=holds)).violations
    assert [one.who for one in violation.operations] == ["b", "d"]


def test_a_reader_conflicts_with_a_writer_but_not_with_a_reader() -> None:
    readers = [Hold(f"r{i}", N, 0, 1 + i, 9.0, 9.5, i + 1, mode=Mode.SHARED) for i in range(3)]
    assert check(History(holds=tuple(readers))).ok
    writer = Hold("w", N, 0, 8.0, 12.0, 12.5, 9)
    found = check(History(holds=(*readers, writer))).violations
    assert [one.promise for one in found] == [Promise.EXCLUSION]
    assert len(found[0].operations) == 2


def test_stale_writes_are_found_and_refused_ones_counted() -> None:
    writes = [Write("a", "r", 1, 5, "a", True), Write("b", "r", 2, 7, "b", True), Write("a", "r", 3, 5, "a", False)]
    verdict = check(History(writes=tuple(writes)))
    assert verdict.ok
    assert verdict.fenced_off == 1
    stale = replace(writes[2], accepted=True)
    (violation,) = check(History(writes=(*writes[:2], stale))).violations
    assert violation.promise is Promise.FENCING
    assert violation.operations == (writes[1], stale)
    twice = replace(writes[1], who="c", owner="c", order=4)
    assert not check(History(writes=(*writes, twice))).ok


def test_a_check_that_succeeds_after_the_deadline_is_a_silent_loss() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=5.0, notified=5.01, checked=4.9)
    assert check(History(holds=(lost,))).ok
    found = check(History(holds=(replace(lost, checked=5.005),))).violations
    assert [one.promise for one in found] == [Promise.LOSS_NOTICE]


def test_a_late_loss_notice_is_found_unless_the_holder_was_paused() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=5.0, notified=7.0)
    assert [one.promise for one in check(History(holds=(lost,))).violations] == [Promise.LOSS_NOTICE]
    assert check(History(holds=(lost,), stalls=(Stall("a", 3.0, 6.99),))).ok
    assert not check(History(holds=(lost,), stalls=(Stall("b", 3.0, 6.99),))).ok
    assert check(History(holds=(replace(lost, until=4.9),))).ok, "it had sent its release before"


def test_a_needless_loss_is_found_unless_the_client_could_not_renew() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=5.0, notified=5.0)
    bounds = Bounds(keeps_hold=2.0)
    assert [one.promise for one in check(History(holds=(lost,)), bounds).violations] == [Promise.RENEWAL]
    assert check(History(holds=(lost,))).ok
    assert check(History(holds=(lost,), outages=(Stall("a", 3.5, 3.6),)), bounds).ok
    assert not check(History(holds=(lost,), outages=(Stall("a", 2.5, 2.6),)), bounds).ok
    assert check(History(holds=(replace(lost, renews=False),)), bounds).ok
    assert check(History(holds=(replace(lost, until=4.9, notified=4.95),)), bounds).ok, "its release was under way"


def test_a_dropped_hold_that_is_kept_for_too_long_is_found() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=6.0, notified=5.0, dropped=3.5)
    (violation,) = check(History(holds=(lost,)), Bounds(gives_up=1.0)).violations
    assert violation.promise is Promise.AVAILABILITY
    assert "1.500 s" in violation.what
    assert check(History(holds=(lost,)), Bounds(gives_up=1.6)).ok
    assert check(History(holds=(lost,)), Bounds(keeps_hold=2.0)).ok, "its client gave it up on purpose"
    assert check(History(holds=(lost,), stalls=(Stall("a", 4.0, 4.6),)), Bounds(gives_up=1.0)).ok
    assert check(History(holds=(replace(lost, renews=False),)), Bounds(gives_up=1.0)).ok
    for_ever = replace(lost, notified=None, until=FOREVER, deadline=FOREVER)
    assert not check(History(holds=(for_ever,)), Bounds(gives_up=1.0)).ok


def test_a_dropped_hold_is_a_claim_until_its_callback_is_called() -> None:
    dropped = Hold("a", N, 0, 1, 5, None, 1, deadline=6.0, notified=5.0, dropped=3.5)
    assert not check(History(holds=(dropped, Hold("b", N, 2, 4.9, 6, 6, 2)))).ok
    assert check(History(holds=(dropped, Hold("b", N, 2, 5.1, 6, 6, 2)))).ok


def test_a_loss_in_the_store_without_a_notice_is_found() -> None:
    held = Hold("a", N, 0, 1, 5, 5.1, 1)
    history, bounds = History(holds=(held,), removals=(3.0,)), Bounds(noticed=1.0)
    (violation,) = check(history, bounds).violations
    assert violation.promise is Promise.LOSS_NOTICE
    assert "2.000 s" in violation.what
    assert check(history).ok
    assert check(history, Bounds(noticed=2.5)).ok
    assert check(replace(history, stalls=(Stall("a", 3.5, 4.6),)), bounds).ok
    assert check(replace(history, removals=(0.5, 4.5)), bounds).ok, "before its grant, and just before its end"
    assert check(replace(history, holds=(replace(held, renews=False),)), bounds).ok


def test_a_deadline_more_than_a_lease_after_the_request_is_found() -> None:
    held = Hold("a", N, 0, 1, 5, 5.1, 1, lease=2.0)
    (violation,) = check(History(holds=(replace(held, believed=2.01),))).violations
    assert violation.promise is Promise.EXCLUSION
    assert check(History(holds=(replace(held, believed=1.99),))).ok
    assert check(History(holds=(held,))).ok


def test_a_late_wake_up_is_found() -> None:
    first = Hold("a", N, 0, 1, 5, 5.1, 1)
    late = Hold("b", N, 2, 9, 10, 10.1, 2, queued=2.1)
    (violation,) = check(History(holds=(first, late)), Bounds(wake_up=1.0)).violations
    assert violation.promise is Promise.WAKE_UP
    assert "3.900 s" in violation.what
    assert check(History(holds=(first, late)), Bounds(wake_up=4.0)).ok
    assert check(History(holds=(first, late), stalls=(Stall("b", 5.0, 8.9),)), Bounds(wake_up=1.0)).ok
    assert check(History(holds=(first, replace(late, queued=None, asked=8.0))), Bounds(wake_up=1.0)).ok
    gave_up = Try("c", N, 3.0, 8.5, queued=3.1, lease=2.0)
    at_once = replace(late, queued=None, asked=8.9)
    (violation,) = check(History(holds=(first, at_once), tries=(gave_up,)), Bounds(wake_up=1.0)).violations
    assert violation.operations[-1] is gave_up, "it waited for a free name until its timeout"
    cut_off = Stall("c", 5.0, 9.0)
    assert check(History(holds=(first, at_once), tries=(gave_up,), outages=(cut_off,)), Bounds(wake_up=1.0)).ok


def test_a_waiter_that_never_got_a_free_name_is_found_though_nobody_held_it_afterwards() -> None:
    last = Hold("a", N, 0, 1, 5, 5.1, 1)
    gave_up = Try("c", N, 3.0, 8.5, queued=3.1, lease=2.0)
    (violation,) = check(History(holds=(last,), tries=(gave_up,)), Bounds(wake_up=1.0)).violations
    assert violation.operations == (last, gave_up)
    assert "3.400 s" in violation.what
    assert check(History(holds=(replace(last, freed=None, lease=3.0),), tries=(gave_up,)), Bounds(wake_up=1.0)).ok


def test_a_paused_client_may_have_had_its_grant_since_its_request() -> None:
    first = Hold("a", "x", 0.0, 0.1, 1.0, 1.01, 1)
    stopped = Hold("b.1", "x", 1.0, 2.0, 2.1, 2.11, 2)
    waiter = Hold("c", "x", 1.1, 2.15, 3.0, 3.01, 3, queued=1.15)
    bounds, stall = Bounds(wake_up=0.5), Stall("b", 1.02, 1.99)
    assert check(History(holds=(first, stopped, waiter), stalls=(stall,)), bounds).ok
    for pauses in ((), (replace(stall, who="d"),), (replace(stall, begin=0.5, end=0.9),)):
        found = check(History(holds=(first, stopped, waiter), stalls=pauses), bounds)
        assert found.by_promise[Promise.WAKE_UP] == 1, pauses
    late = replace(waiter, granted=2.9)
    found = check(History(holds=(first, stopped, late), stalls=(stall,)), bounds)
    assert found.by_promise[Promise.WAKE_UP] == 1, "it had released it long before"


def test_a_client_paused_before_its_queue_answer_may_have_been_granted_the_name() -> None:
    first = Hold("a", N, 0, 1, 5, 5.1, 1)
    gave_up = Try("b", N, 4.0, 9.5, queued=9.4, lease=2.0)  # the answer that it waits came while it was paused
    waiter = Hold("c", N, 5.5, 7.1, 8, 8.1, 2, queued=5.6)
    bounds, stall = Bounds(wake_up=1.0), Stall("b", 4.1, 9.4)
    assert check(History(holds=(first, waiter), tries=(gave_up,), stalls=(stall,)), bounds).ok
    for pauses in ((), (replace(stall, who="d"),), (replace(stall, begin=9.41, end=9.45),)):
        found = check(History(holds=(first, waiter), tries=(gave_up,), stalls=pauses), bounds)
        assert found.by_promise[Promise.WAKE_UP] == 1, pauses


def test_a_crashed_holder_counts_until_its_lease_ends() -> None:
    crashed = Hold("a", N, 0, 1, 5, None, 1, lease=3.0)
    after = Hold("b", N, 2, 8.2, 10, 10.1, 2, queued=2.1)
    assert check(History(holds=(crashed, after)), Bounds(wake_up=0.25)).ok
    assert not check(History(holds=(crashed, replace(after, granted=8.3))), Bounds(wake_up=0.25)).ok


def test_nesting() -> None:
    outer = Hold("a", N, 0, 1, 9, 9.1, 1)
    inner = Hold("a", N, 2, 2, 4, 4, 1, nested=True)
    assert check(History(holds=(outer, inner))).ok
    for bad in (replace(inner, token=2), replace(inner, until=9.5), replace(inner, who="b")):
        assert Promise.NESTING in {one.promise for one in check(History(holds=(outer, bad))).violations}


def test_overtaking_is_found() -> None:
    first = Hold("a", N, 0.0, 5, 6, 6, 3, queued=0.1, fair=True)
    second = Hold("b", N, 1.0, 3, 4, 4, 2, queued=1.1, fair=True)
    found = check(History(holds=(first, second))).violations
    assert [one.promise for one in found] == [Promise.FIFO]
    assert found[0].operations == (first, second)
    assert check(History(holds=(first, second)), Bounds(fifo=False)).ok
    assert check(History(holds=(first, replace(second, asked=0.05)))).ok  # before the first had its entry


def test_the_time_of_a_check_grows_about_linearly() -> None:
    """Ten times the history takes about ten times as long; a search over pairs would take a hundred times."""

    def spent(count: int) -> float:
        history = History(holds=tuple(good(count)))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            check(history)
            best = min(best, time.process_time() - start)
        return best

    assert spent(20_000) < 40 * spent(2_000)

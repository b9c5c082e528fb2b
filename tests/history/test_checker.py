"""The checker against an exhaustive search on small random histories, and against planted faults in large ones."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from leasehold_lab.history import Bounds, History, Hold, Mode, Promise, Stall, Try, Write, check
from leasehold_lab.history.exclusion import overlaps, refused_while_free
from leasehold_lab.history.fencing import tokens_against_claims, tokens_against_time
from leasehold_lab.history.operations import FOREVER
from leasehold_lab.history.waiting import inversions

N = "stock"


def hold(
    who: str, asked: float, granted: float | None, until: float, freed: float | None, token: int | None = None
) -> Hold:
    return Hold(who, N, asked, granted, until, freed, token)


# --- the search: every order in which a lock could have acted -----------------------------------------------------

Event = tuple[float, float, str, int]
"""The window in which it took effect, what it was (take, give, refuse), and of which operation."""


def can_be(holds: list[Hold], tries: list[Try], *, tokens: bool = False) -> bool:
    """Say, by trying all orders, whether a lock of that kind could have answered like this."""
    sure = [number for number, one in enumerate(holds) if one.granted is not None]
    maybe = [number for number, one in enumerate(holds) if one.granted is None]
    for count in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, count):
            if _search(holds, tries, [*sure, *chosen], tokens):
                return True
    return False


def _search(holds: list[Hold], tries: list[Try], present: list[int], tokens: bool) -> bool:
    events: list[Event] = []
    for number in present:
        one = holds[number]
        end = float("inf")
        events.append((one.asked, end if one.granted is None else one.granted, "take", number))
        begin = one.asked if one.granted is None else one.until
        events.append((begin, end if one.freed is None else one.freed, "give", number))
    events += [(one.asked, one.answered, "refuse", number) for number, one in enumerate(tries)]

    def step(left: list[Event], now: float, active: frozenset[int], highest: int) -> bool:
        if not left:
            return True
        for event in left:
            begin, end, what, number = event
            at = max(now, begin)
            if at > end or any(other[1] < at for other in left):
                continue
            rest = [other for other in left if other is not event]
            if what == "refuse":
                fits = bool(active)
                after, top = active, highest
            elif what == "give":
                fits, after, top = number in active, active - {number}, highest
            else:
                fits = _may_enter(holds[number], [holds[other] for other in active])
                token = holds[number].token
                if tokens and token is not None:
                    fits = fits and token > highest
                after, top = active | {number}, max(highest, token or 0)
            if fits and step(rest, at, after, top):
                return True
        return False

    return step(events, 0.0, frozenset(), 0)


def _may_enter(me: Hold, active: Iterable[Hold]) -> bool:
    for other in active:
        if Mode.EXCLUSIVE in (me.mode, other.mode):
            return False
    return sum(other.permits for other in active) + me.permits <= me.limit if me.mode is Mode.PERMITS else True


# --- random small histories --------------------------------------------------------------------------------------


def small(random_: random.Random, *, modes: tuple[Mode, ...] = (Mode.EXCLUSIVE,)) -> list[Hold]:
    """Make two to four holds with windows that overlap often."""
    found = []
    for number in range(random_.randint(2, 4)):
        a1, a2, r1, r2 = sorted(random_.randint(0, 9) for _ in range(4))
        one = hold(f"c{number}", a1, a2, r1, r2)
        kind = random_.random()
        if kind < 0.15:
            one = hold(f"c{number}", a1, None, float("inf"), None)
        elif kind < 0.3:
            one = replace(one, freed=None)
        mode = random_.choice(modes)
        found.append(replace(one, mode=mode, permits=random_.randint(1, 2) if mode is Mode.PERMITS else 1, limit=3))
    return found


ROUNDS = 7_000
"""Random histories of each comparison with the search; overlaps are compared three times, with different modes."""


def test_overlaps_agree_with_the_search_on_exclusive_holds() -> None:
    random_ = random.Random(1)
    seen = {True: 0, False: 0}
    for _ in range(ROUNDS):
        holds = [one for one in small(random_) if one.granted is None or one.until > one.granted]
        expected = can_be(holds, [])
        assert expected == (not list(overlaps(holds))), holds
        seen[expected] += 1
    assert min(seen.values()) > ROUNDS / 20  # both answers came up


@pytest.mark.parametrize(
    "modes", [(Mode.EXCLUSIVE, Mode.SHARED), (Mode.PERMITS,)], ids=["readers and writers", "permits"]
)
def test_overlaps_agree_with_the_search_on_holds_that_may_stand_together(modes: tuple[Mode, ...]) -> None:
    random_ = random.Random(2)
    seen = {True: 0, False: 0}
    for _ in range(ROUNDS):
        holds = [one for one in small(random_, modes=modes) if one.granted is None or one.until > one.granted]
        expected = can_be(holds, [])
        assert expected == (not list(overlaps(holds))), holds
        seen[expected] += 1
    assert min(seen.values()) > ROUNDS / 50


def test_refused_tries_agree_with_the_search() -> None:
    random_ = random.Random(3)
    seen = {True: 0, False: 0}
    while min(seen.values()) < ROUNDS / 10:
        holds = [one for one in small(random_)[:3] if one.granted is None or one.until > one.granted]
        if not can_be(holds, []):
            continue
        windows = [sorted(random_.randint(0, 12) for _ in range(2)) for _ in range(random_.randint(1, 2))]
        tries = [Try("t", N, begin, end) for begin, end in windows]
        expected = can_be(holds, tries)
        found = list(refused_while_free(holds, tries))
        if expected or all(one.granted is not None for one in holds):
            assert expected == (not found), (holds, tries)
            seen[expected] += 1


def test_tokens_agree_with_the_search() -> None:
    random_ = random.Random(4)
    seen = {True: 0, False: 0}
    for _ in range(ROUNDS):
        holds = [one for one in small(random_) if one.granted is not None and one.until > one.granted]
        if not can_be(holds, []):
            continue
        tokens = random_.sample(range(1, 9), len(holds))
        holds = [replace(one, token=token) for one, token in zip(holds, tokens, strict=True)]
        expected = can_be(holds, [], tokens=True)
        assert expected == (not list(tokens_against_claims(holds))), holds
        if list(tokens_against_time(holds)):
            assert not expected, holds
        seen[expected] += 1
    assert min(seen.values()) > ROUNDS / 50


def test_inversions_agree_with_counting_all_pairs() -> None:
    random_ = random.Random(5)
    for _ in range(300):
        holds = []
        for token in random_.sample(range(1, 40), random_.randint(2, 12)):
            asked = random_.randint(0, 20)
            queued = asked + random_.randint(0, 4)
            placed = queued if random_.random() < 0.8 else None
            holds.append(
                Hold(f"c{token}", N, asked, 30 + token, 31 + token, 31 + token, token, queued=placed, fair=True)
            )
        pairs = sum(
            one.queued is not None and one.queued < other.asked and (one.token or 0) > (other.token or 0)
            for one in holds
            for other in holds
        )
        assert inversions(holds).count == pairs


def test_a_waiter_may_be_passed_over_while_it_is_cut_off_and_at_no_other_time() -> None:
    first = Hold("a", N, 0.0, 10.0, 11.0, 11.0, 3, queued=1.0, fair=True)
    second = Hold("b", N, 2.0, 5.0, 6.0, 6.0, 2, queued=2.5, fair=True)
    for cut, missed in ((4.5, True), (4.9, True), (6.0, False), (2.0, False)):
        away = [Stall("a", cut, cut + 0.3)]
        late = 0.3 if cut == 4.5 else 0.0  # it was passed over at 4.8, and the other heard of that at 5.0
        assert inversions([first, second], away, 1.0).count == 1
        assert inversions([first, second], away, 1.0, late).count == (0 if missed else 1), cut
        assert inversions([first, second], [Stall("b", cut, cut + 0.3)], 1.0, late).count == 1


# --- verdicts ------------------------------------------------------------------------------------------------------


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


def test_permits_beyond_the_limit_are_shown_by_as_few_as_do_it() -> None:
    def permits(who: str, begin: float, count: int) -> Hold:
        return Hold(who, N, begin, begin, 10.0, 10.0, mode=Mode.PERMITS, permits=count, limit=6)

    holds = (permits("a", 1, 1), permits("b", 2, 3), permits("c", 3, 1), permits("d", 4, 4))
    (violation,) = check(History(holds=holds)).violations
    assert [one.who for one in violation.operations] == ["b", "d"]


def test_a_reader_beside_a_writer_is_found_and_beside_a_reader_is_not() -> None:
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


def test_a_check_that_said_yes_after_the_deadline_is_a_silent_loss() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=5.0, notified=5.01, checked=4.9)
    assert check(History(holds=(lost,))).ok
    found = check(History(holds=(replace(lost, checked=5.005),))).violations
    assert [one.promise for one in found] == [Promise.LOSS_NOTICE]


def test_a_holder_told_late_is_found_unless_it_stood_still() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=5.0, notified=7.0)
    assert [one.promise for one in check(History(holds=(lost,))).violations] == [Promise.LOSS_NOTICE]
    assert check(History(holds=(lost,), stalls=(Stall("a", 3.0, 6.99),))).ok
    assert not check(History(holds=(lost,), stalls=(Stall("b", 3.0, 6.99),))).ok
    assert check(History(holds=(replace(lost, until=4.9),))).ok, "it had sent its release before"


def test_a_hold_lost_without_need_is_found_unless_its_holder_was_kept_from_renewing_it() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=5.0, notified=5.0)
    bounds = Bounds(keeps_hold=2.0)
    assert [one.promise for one in check(History(holds=(lost,)), bounds).violations] == [Promise.RENEWAL]
    assert check(History(holds=(lost,))).ok
    assert check(History(holds=(lost,), outages=(Stall("a", 3.5, 3.6),)), bounds).ok
    assert not check(History(holds=(lost,), outages=(Stall("a", 2.5, 2.6),)), bounds).ok
    assert check(History(holds=(replace(lost, renews=False),)), bounds).ok
    assert check(History(holds=(replace(lost, until=4.9, notified=4.95),)), bounds).ok, "it was on its way out"


def test_a_hold_that_was_dropped_and_kept_for_too_long_is_found() -> None:
    lost = Hold("a", N, 0, 1, 5, None, 1, deadline=6.0, notified=5.0, dropped=3.5)
    (violation,) = check(History(holds=(lost,)), Bounds(gives_up=1.0)).violations
    assert violation.promise is Promise.AVAILABILITY
    assert "1.500 s" in violation.what
    assert check(History(holds=(lost,)), Bounds(gives_up=1.6)).ok
    assert check(History(holds=(lost,)), Bounds(keeps_hold=2.0)).ok, "it was given up on purpose"
    assert check(History(holds=(lost,), stalls=(Stall("a", 4.0, 4.6),)), Bounds(gives_up=1.0)).ok
    assert check(History(holds=(replace(lost, renews=False),)), Bounds(gives_up=1.0)).ok
    for_ever = replace(lost, notified=None, until=FOREVER, deadline=FOREVER)
    assert not check(History(holds=(for_ever,)), Bounds(gives_up=1.0)).ok


def test_a_hold_that_was_dropped_is_a_claim_until_whoever_listens_is_told() -> None:
    dropped = Hold("a", N, 0, 1, 5, None, 1, deadline=6.0, notified=5.0, dropped=3.5)
    assert not check(History(holds=(dropped, Hold("b", N, 2, 4.9, 6, 6, 2)))).ok
    assert check(History(holds=(dropped, Hold("b", N, 2, 5.1, 6, 6, 2)))).ok


def test_a_hold_that_the_store_had_lost_and_that_was_believed_in_is_found() -> None:
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


def test_who_believes_for_longer_than_a_lease_from_what_it_sent_is_found() -> None:
    held = Hold("a", N, 0, 1, 5, 5.1, 1, lease=2.0)
    (violation,) = check(History(holds=(replace(held, believed=2.01),))).violations
    assert violation.promise is Promise.EXCLUSION
    assert check(History(holds=(replace(held, believed=1.99),))).ok
    assert check(History(holds=(held,))).ok


def test_a_waiter_that_slept_on_is_found() -> None:
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
    assert violation.operations[-1] is gave_up, "it waited beside a free name until it gave up"
    cut_off = Stall("c", 5.0, 9.0)
    assert check(History(holds=(first, at_once), tries=(gave_up,), outages=(cut_off,)), Bounds(wake_up=1.0)).ok


def test_who_stood_still_when_its_grant_came_may_have_had_it_since_it_asked() -> None:
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
    assert found.by_promise[Promise.WAKE_UP] == 1, "it had given it back for long"


def test_who_stood_still_before_it_heard_that_it_waits_may_have_been_given_the_name() -> None:
    first = Hold("a", N, 0, 1, 5, 5.1, 1)
    gave_up = Try("b", N, 4.0, 9.5, queued=9.4, lease=2.0)  # the word that it waits came while it stood still
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
    assert check(History(holds=(first, replace(second, asked=0.05)))).ok  # it asked before the first had its place


def test_it_grows_about_linearly() -> None:
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

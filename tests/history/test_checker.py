"""The checker agrees with an exhaustive search on small random histories."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from exhaustive_search import can_be

from leasehold_lab.history import Hold, Mode, Stall, Try
from leasehold_lab.history.exclusion import overlaps, refused_while_free
from leasehold_lab.history.fencing import tokens_against_claims, tokens_against_time
from leasehold_lab.history.waiting import inversions

N = "stock"


def hold(
    who: str, asked: float, granted: float | None, until: float, freed: float | None, token: int | None = None
) -> Hold:
    return Hold(who, N, asked, granted, until, freed, token)


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
def test_overlaps_agree_with_the_search_on_shared_holds(modes: tuple[Mode, ...]) -> None:
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


def test_a_waiter_may_be_passed_over_only_while_it_is_cut_off() -> None:
    first = Hold("a", N, 0.0, 10.0, 11.0, 11.0, 3, queued=1.0, fair=True)
    second = Hold("b", N, 2.0, 5.0, 6.0, 6.0, 2, queued=2.5, fair=True)
    for cut, missed in ((4.5, True), (4.9, True), (6.0, False), (2.0, False)):
        away = [Stall("a", cut, cut + 0.3)]
        late = 0.3 if cut == 4.5 else 0.0  # it was passed over at 4.8, and the other received its grant at 5.0
        assert inversions([first, second], away, 1.0).count == 1
        assert inversions([first, second], away, 1.0, late).count == (0 if missed else 1), cut
        assert inversions([first, second], [Stall("b", cut, cut + 0.3)], 1.0, late).count == 1

"""What successive looks tell: ages by tokens or by what was seen, and hand-overs a second."""

from __future__ import annotations

import pytest

from leasehold._inspection import Contender, LockInfo
from leasehold.cli.top.looks import Looks, Row

WALL = 1_800_000_000.0


def info(name: str, *tokens: int, last: int = 0) -> LockInfo:
    holders = tuple(Contender("h:1:c", "h", 1, token, 10.0, None) for token in tokens)
    return LockInfo(name, "mutex", last or max(tokens, default=0), holders, (), 0.0)


def look(looks: Looks, at: float, *infos: LockInfo, skew: float = 0.0) -> dict[str, Row]:
    rows = looks.add(infos, sent=at, now=at, wall=WALL + at - skew)
    return {row.info.name: row for row in rows}


def token(at: float) -> int:
    return round((WALL + at) * 1e6)


def test_an_age_is_read_from_the_token() -> None:
    row = look(Looks(), 100.0, info("a", token(40.0)))["a"]
    assert row.age == pytest.approx(60.0)
    assert not row.age_at_least


@pytest.mark.parametrize("skew", [-3600.0, -2.0, 2.0, 3600.0])
def test_another_clock_cannot_put_an_age_outside_of_what_was_seen(skew: float) -> None:
    looks = Looks()
    look(looks, 100.0)
    assert 0 <= look(looks, 101.0, info("a", token(100.5)), skew=skew)["a"].age <= 1.0
    assert 9.0 <= look(looks, 110.0, info("a", token(100.5)), skew=skew)["a"].age <= 10.0


def test_a_token_that_is_no_time_gives_the_time_since_the_first_look() -> None:
    looks = Looks()
    row = look(looks, 100.0, info("a", 7))["a"]
    assert (row.age, row.age_at_least) == (0.0, True)
    row = look(looks, 107.0, info("a", 7))["a"]
    assert (row.age, row.age_at_least) == (7.0, True)
    assert look(looks, 108.0, info("a", 8))["a"].age == 0.0


def test_new_tokens_are_hand_overs() -> None:
    looks = Looks()
    rates = [look(looks, float(at), info("a", at // 2 + 1))["a"] for at in range(9)]
    assert rates[0].rate == 0
    assert rates[8].rate == pytest.approx(0.5)
    assert not rates[8].rate_at_least


def test_a_new_token_in_each_look_is_a_lower_bound() -> None:
    looks = Looks()
    rows = [look(looks, float(at), info("a", at + 1))["a"] for at in range(5)]
    assert rows[-1].rate == pytest.approx(1.0)
    assert rows[-1].rate_at_least


def test_who_came_and_went_between_two_looks_counts() -> None:
    looks = Looks()
    look(looks, 0.0, info("a", last=5))
    assert look(looks, 1.0, info("a", last=9))["a"].rate == pytest.approx(1.0)
    assert look(looks, 2.0, info("a", last=9))["a"].rate == pytest.approx(0.5)


def test_a_rate_ends_after_the_window() -> None:
    looks = Looks()
    look(looks, 0.0, info("a", 1))
    assert look(looks, 1.0, info("a", 2))["a"].rate > 0
    for at in range(2, 14):
        rows = look(looks, float(at), info("a", 2))
    assert rows["a"].rate == 0


def test_a_name_that_was_free_in_one_look_keeps_its_rate_and_a_long_free_one_is_forgotten() -> None:
    looks = Looks()
    look(looks, 0.0, info("a", 1), info("b", 1))
    look(looks, 1.0, info("b", 1))
    assert look(looks, 2.0, info("a", 2))["a"].rate == pytest.approx(0.5)
    for at in range(3, 20):
        look(looks, float(at))
    assert looks._names == {}


def test_each_holder_of_a_semaphore_counts_and_the_oldest_gives_the_age() -> None:
    looks = Looks()
    look(looks, 0.0, info("a", token(-5.0)))
    row = look(looks, 1.0, info("a", token(-5.0), token(0.4), token(0.6)))["a"]
    assert row.rate == pytest.approx(2.0)
    assert row.age == pytest.approx(6.0)

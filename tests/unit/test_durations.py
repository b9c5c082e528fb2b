"""Durations on the command line: seconds, or numbers with units."""

from __future__ import annotations

import click
import pytest

from leasehold.cli.options import Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("2d", 172_800.0),
        ("1h30m", 5400.0),
        ("1m.5s", 60.5),
        (" 5m ", 300.0),
    ],
)
def test_what_is_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "5x", "5 m", "m", "5m3", "1h-5m", "-5m", "1.2.3s", "٥m", "5M", "0x1"])
def test_what_is_no_time_names_the_forms(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no time; write seconds, or add a unit: 30, 1\.5s, 5m, 1h"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("text", ["-1", "nan", "0.5s", "2h", "inf"])
def test_bounds(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be 1 s at least and 3600 s at most"):
        Duration(1, 3600).convert(text, None, None)


def test_a_default_that_is_a_number_stays() -> None:
    assert Duration().convert(30.0, None, None) == 30.0

"""The table of foreign programs in the documentation: its rows are the tests', its versions those that are built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.plugins.foreign_table import BEGIN, END, HEAD, PAGE, ROWS, named, table, written

FOREIGN = Path(__file__).parents[2] / "foreign"

KIND = re.compile(r'"((?:redisson|spring|shedlock|hazelcast|redsync|node-redlock|redis-py)[a-z-]*)"')
"""A kind of lock in a test; a library's name alone is the folder of a program, too."""


def test_each_kind_of_lock_that_tests_share_has_a_row() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in FOREIGN.glob("test_*.py"))
    assert set(KIND.findall(sources)) - {"spring"} == {row.kind for row in ROWS}


def test_the_committed_table_has_these_rows_versions_and_figures() -> None:
    lines = written(PAGE.read_text(encoding="utf-8")).splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert cells[0] == list(HEAD)
    assert [line[: len(named(ROWS[0]))] for line in cells[2:]] == [named(row) for row in ROWS], "write it anew"
    for row, line in zip(ROWS, cells[2:], strict=True):
        _, _, _, visits, lost, overlaps, *_ = line
        assert re.fullmatch(r"\d+ \+ \d+", visits), row
        assert (lost, overlaps) == ("0", "0")


def test_a_table_has_the_most_visits_the_median_of_wakes_and_the_longest_kill() -> None:
    first = {"kind": "redisson", "server": "redis"}
    figures = [
        {**first, "what": "visits", "theirs": 300, "ours": 600},
        {**first, "what": "visits", "theirs": 900, "ours": 900},
        *({**first, "what": "woken", "side": "ours", "ms": ms} for ms in (3, 5, 90)),
        {**first, "what": "killed", "side": "theirs", "ms": 2510, "lease": 3.0},
        {**first, "what": "killed", "side": "theirs", "ms": 2709, "lease": 3.0},
    ]
    (line,) = [
        line for line in table(figures).splitlines() if line.startswith("| `getLock` | ") and "| Redis |" in line
    ]
    assert line.endswith("| Redis | 900 + 900 | 0 | 0 | 5 ms | 2.71 s (lease: 3 s) |")


@pytest.mark.parametrize("mark", [BEGIN, END])
def test_the_page_has_each_mark_once(mark: str) -> None:
    assert PAGE.read_text(encoding="utf-8").count(mark) == 1

"""Each row of the fault catalogue has a test, a fault of ``leasehold verify``, or a reason why not."""

from __future__ import annotations

import pytest
from coverage_of_faults import EXPECTED, PAGE, ROWS, covered, listed, missing, provoked, real, written


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_tests_that_exist_or_a_reason(row: str) -> None:
    wrong = [problem for problem in map(missing, ROWS[row].get("tests", [])) if problem is not None]
    assert not wrong
    assert covered(row) or len(ROWS[row].get("why", "")) > 20, "neither a test, nor a fault, nor a reason"


def test_the_catalogue_has_all_rows_in_order() -> None:
    assert list(ROWS) == [f"{group}{number}" for group, rows in EXPECTED.items() for number in range(1, rows + 1)]
    assert set(provoked()) <= set(ROWS), "a fault names a row that does not exist"


def test_most_rows_are_tested_on_real_servers() -> None:
    assert sum(map(real, ROWS)) >= 80
    assert sum(map(covered, ROWS)) >= 105


def test_the_page_shows_the_current_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run: python tests/chaos/coverage_of_faults.py"


def test_the_lists_of_all_rows_and_of_uncovered_rows() -> None:
    assert [line.split()[0] for line in listed(missing_only=False)] == list(ROWS)
    gone = {line.split()[0] for line in listed(missing_only=True)}
    assert gone == {row for row in ROWS if not covered(row)}
    assert len(gone) <= 6


def test_a_reference_to_a_test_that_does_not_exist_is_reported() -> None:
    assert missing("stores/redis/errors/test_redis_faults.py::test_nothing") is not None
    assert missing("nowhere.py::test_nothing") is not None
    assert missing("kit:nothing") is not None

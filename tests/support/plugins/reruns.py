"""Which tests are run again, and why. A test that passes in the end has failed before: find out why."""

from __future__ import annotations

import pytest

LONGEST = 300
"""Characters of a reason that are shown."""

reasons: list[str] = []
"""A line for each run of a test that was not its last."""


def note(report: pytest.TestReport) -> None:
    """Write down why a test is run again, if it is."""
    if str(report.outcome) == "rerun":
        reasons.append(f"{report.nodeid} ({report.when}): {reason(report.longreprtext)}")


def reason(text: str) -> str:
    """Return the line of a failure that says what was wrong: the first that pytest marks, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    return (marked[:1] or lines[-1:] or ["it does not say why"])[0][:LONGEST]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down why a test is run again."""
    note(report)

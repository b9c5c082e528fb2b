"""The profiles of a run side by side, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from leasehold_lab.bench.result import Result, Row
from leasehold_lab.bench.trials.sampling import KERNEL

EXPLAINED = """\
## Where the time goes

Microseconds of processor time for one acquire and release, in one more trial of each. For the client they are samples,
taken each time a timer of its processor time fires; for the server they are its own statistics. In hand-over all
contenders are added up, including those that wait.
"""


def where_it_goes(result: Result) -> str:
    """Return a table for each profiled measure, as Markdown; empty if there is none."""
    tables = [table for row in result.rows for table in _table(row)]
    return "\n".join([EXPLAINED, *tables]) if tables else ""


def _table(row: Row) -> Iterator[str]:
    profiles = [(one.contestant.title, one.profile) for one in (row.floor, row.ours) if one is not None]
    known = [(title, profile.lines) for title, profile in profiles if profile is not None]
    if not known:
        return
    names = dict.fromkeys(name for _, lines in reversed(known) for name in lines)
    ordered = sorted(names, key=lambda name: (name.startswith("server"), KERNEL in name))
    yield f"| {row.measure.title} | " + " | ".join(title for title, _ in known) + " |"
    yield "| --- |" + " ---: |" * len(known)
    for name in ordered:
        yield f"| {name} | " + " | ".join(f"{lines[name]:.1f}" if name in lines else "–" for _, lines in known) + " |"
    sums = [sum(value for name, value in lines.items() if KERNEL not in name) for _, lines in known]
    yield "| all | " + " | ".join(f"{value:.1f}" for value in sums) + " |\n"

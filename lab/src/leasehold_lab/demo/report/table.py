"""The result as a table of text: what each column says, and how it is laid out in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leasehold_lab.demo.result import RowResult

COLUMNS = ("", "final count", "lost updates", "errors", "requests/s", "p50", "p99", "overlapping pairs")

Paint = Callable[[str, bool], str]
"""Flavors a text as good or bad."""


def cells(row: RowResult) -> tuple[str, ...]:
    """Return what a row says in each column."""
    return (
        row.title,
        f"{row.final} of {row.requests}",
        str(row.lost),
        str(len(row.failures)),
        f"{row.rate:.0f}",
        _ms(row.latency_ms(50)),
        _ms(row.latency_ms(99)),
        f"{row.overlapping_pairs:,}",
    )


def table(rows: Sequence[RowResult], paint: Paint) -> str:
    """Lay out the rows; ``paint`` colors the final counts."""
    lines = [COLUMNS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    printed = [
        "  ".join(_aligned(cell, width, index) for index, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    ruled = [printed[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *printed[1:]]
    for index, row in enumerate(rows, start=2):
        count = cells(row)[1].rjust(widths[1])
        ruled[index] = ruled[index].replace(count, paint(count, row.exact), 1)
    return "\n".join(line.rstrip() for line in ruled)


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"

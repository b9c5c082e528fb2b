"""A run as text, for terminals and for Markdown."""

from __future__ import annotations

from leasehold_lab.bench.result import Entry, Result, Row, Spread

COLUMNS = (
    "",
    "per second",
    "of the floor",
    "ours is",
    "p50 ms",
    "p99 ms",
    "client µs",
    "server µs",
    "reads",
    "commands",
)
"""The last four are for one acquire and release; a dash means unknown."""


IDLE = ("", "client core", "server core", "commands/s", "client KiB each", "server bytes each", "threads")
"""Columns of the idle measures; the first two figures are fractions of one core."""


def heads(row: Row) -> tuple[str, ...]:
    """Return the heads of one measure's columns; the first names the measure."""
    return (row.measure.title, *(IDLE if row.measure.idle else COLUMNS)[1:])


def cells(row: Row) -> list[tuple[str, ...]]:
    """Return the cells of one measure, a line for each contestant."""
    return [_line(entry, row) for entry in row.entries]


def _line(entry: Entry, row: Row) -> tuple[str, ...]:
    columns = len(heads(row))
    if not entry.samples:
        return (entry.contestant.title, f"failed: {entry.error}", *[""] * (columns - 2))
    return (entry.contestant.title, *(_idle(entry) if row.measure.idle else _running(entry, row)))


def _running(entry: Entry, row: Row) -> tuple[str, ...]:
    ours = row.ours
    return (
        rate(entry.rate.median),
        _spread(entry.ratio(row.floor)) if entry is not row.floor else "1",
        _times(ours.ratio(entry)) if ours is not None and ours is not entry else "",
        f"{entry.median('p50') * 1e3:.3f}",
        f"{entry.median('p99') * 1e3:.3f}",
        f"{entry.client_us:.1f}",
        f"{entry.server_us:.1f}" if entry.server_us else "–",
        f"{entry.reads:.2f}" if entry.reads else "–",
        (f"{entry.commands:.1f}" if entry.commands else "–")
        + (f"  NOT EXCLUSIVE: {entry.overlaps} times" if entry.overlaps else ""),
    )


def _idle(entry: Entry) -> tuple[str, ...]:
    return (
        f"{entry.share('client'):.2%}",
        f"{entry.share('server'):.2%}",
        f"{entry.commands_per_second:,.1f}",
        f"{entry.median('memory') / 1024:.1f}",
        f"{entry.server_bytes:,.0f}",
        f"{entry.median('threads'):.0f}",
    )


def text(result: Result) -> str:
    """Return the whole run."""
    parts = [f"{name + ':':12} {value}" for name, value in result.facts.items()]
    for row in result.rows:
        parts += ["", block(row)]
    if result.missing:
        parts.append("")
        parts += [f"not measured: {title} ({why})" for title, why in result.missing.items()]
    return "\n".join(parts)


def block(row: Row) -> str:
    """Return one measure."""
    lines = [heads(row), *cells(row)]
    short = [line for line in lines if not line[1].startswith("failed")]
    widths = [max(len(line[at]) for line in short) for at in range(len(lines[0]))]
    return "\n".join(_laid_out(line, widths) for line in lines)


def _laid_out(line: tuple[str, ...], widths: list[int]) -> str:
    first, *others = line
    shown = [first.ljust(widths[0])]
    shown += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return "  ".join(shown).rstrip()


def rate(value: float) -> str:
    """Format operations per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(value: float) -> str:
    """Format a ratio with two significant digits."""
    digits = 0 if value >= 10 else 1 if value >= 2 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f}"


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else f"{ratio(spread.median)} ({ratio(spread.least)}–{ratio(spread.most)})"


def _times(spread: Spread | None) -> str:
    return "" if spread is None else f"{ratio(spread.median)} ×"

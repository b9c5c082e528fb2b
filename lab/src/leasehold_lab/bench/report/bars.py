"""Bars as SVG: for one measure, a bar for each contestant, and the floor as a line across them."""

from __future__ import annotations

from html import escape

from leasehold_lab.bench.contestant import Role
from leasehold_lab.bench.report.table import rate
from leasehold_lab.bench.result import Entry, Row

WIDTH, LABEL, BAR, GAP, ROOM = 760, 190, 18, 6, 130
"""In pixels: the whole, the names, height of a bar, between bars, for figures behind the bars."""

COLORS = {Role.FLOOR: "#9aa0a6", Role.OURS: "#1a7f5a", Role.PEER: "#c9802b"}


def bars(row: Row) -> str:
    """Draw one measure: operations per second, or for idle measures the client's fraction of a core."""
    entries = [entry for entry in row.entries if entry.samples]
    values = [_value(entry, row) for entry in entries]
    most = max(values, default=0.0) or 1.0
    height = _height(row)
    drawn = [_bar(entry, row, value / most, at) for at, (entry, value) in enumerate(zip(entries, values, strict=True))]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12">'
        f"<title>{escape(row.measure.title)}</title>"
        f"{_floor_line(row, most, height)}{''.join(drawn)}</svg>"
    )


def _height(row: Row) -> int:
    return sum(1 for entry in row.entries if entry.samples) * (BAR + GAP) + GAP


def _value(entry: Entry, row: Row) -> float:
    return entry.share("client") if row.measure.idle else entry.rate.median


def _bar(entry: Entry, row: Row, part: float, at: int) -> str:
    top = GAP + at * (BAR + GAP)
    long = max(1.0, part * (WIDTH - LABEL - ROOM))
    said = f"{entry.share('client'):.2%} of a core" if row.measure.idle else f"{rate(entry.rate.median)}/s"
    color, middle, title = COLORS[entry.contestant.role], top + BAR - 5, escape(entry.contestant.title)
    return (
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end" fill="currentColor">{title}</text>'
        f'<rect x="{LABEL}" y="{top}" width="{long:.1f}" height="{BAR}" rx="2" fill="{color}"/>'
        f"{_whisker(entry, row, part, top)}"
        f'<text x="{_right(entry, row, long) + 8:.1f}" y="{middle}" fill="currentColor">{said}</text>'
    )


def _whisker(entry: Entry, row: Row, part: float, top: int) -> str:
    """Draw from the slowest to the fastest round."""
    spread = entry.rate
    if row.measure.idle or not spread.median:
        return ""
    scale = part * (WIDTH - LABEL - ROOM) / spread.median
    left, right, y = LABEL + spread.least * scale, _right(entry, row, spread.median * scale), top + BAR / 2
    return f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}" stroke="#0006" stroke-width="2"/>'


def _right(entry: Entry, row: Row, long: float) -> float:
    """Return where a bar with its whisker ends; a fastest round far out is cut."""
    further = 1.0 if row.measure.idle or not entry.rate.median else entry.rate.most / entry.rate.median
    return min(LABEL + long * max(further, 1.0), WIDTH - ROOM / 2)


def _floor_line(row: Row, most: float, height: int) -> str:
    if row.floor is None:
        return ""
    x = LABEL + _value(row.floor, row) / most * (WIDTH - LABEL - ROOM)
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="#9aa0a6" stroke-dasharray="3 3"/>'

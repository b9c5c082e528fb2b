"""Draw critical sections on a time line, one lane per service, overlaps in red. SVG and HTML by hand.

Positions along the time are per cent of the width, so a drawing fits any screen and its text is never stretched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from leasehold_lab.demo.report.overlaps import Span, crowded, cut, rest, shelves
from leasehold_lab.demo.result import RowResult, Visit

LANE_HEIGHT = 88.0
"""Pixels of a lane that shows the whole run."""

SHELF_HEIGHT = 20.0
"""Pixels of one section in the close-up."""

CLOSE_UP_SHELVES = 8
"""Sections drawn one below the other in a lane of the close-up, at most."""

CLOSE_UP_SECTIONS = 8
"""Sections in a close-up where nothing overlaps."""

TITLES_UP_TO = 4000
"""Sections in a drawing that get a tooltip each; a page with more of them would be too heavy."""

LABEL_FROM = 0.11
"""Part of the width from which a section has room for its label."""


@dataclass(frozen=True, slots=True)
class CloseUp:
    """A cut of the run, enlarged.

    Attributes:
        window: the time that is shown.
        visits: the sections that are drawn.
        hidden: how many more are open in that time.
        twins: two requests that read the same value, so that one update was lost; empty if there are none.

    """

    window: Span
    visits: tuple[Visit, ...]
    hidden: int
    twins: tuple[Visit, ...]


def whole(visits: Sequence[Visit]) -> Span:
    """Return the time from the first to the last section."""
    return min(visit.start for visit in visits), max(visit.end for visit in visits)


def close_up(visits: Sequence[Visit]) -> CloseUp:
    """Choose the cut: around two requests that read the same value, or else where the sections are densest."""
    twins = closest_twins(visits)
    if twins:
        window = _padded(whole(twins), 0.5, whole(visits))
    else:
        window = _padded(whole(_densest(sorted(visits, key=lambda visit: visit.start))), 0.02, whole(visits))
    inside = [visit for visit in visits if visit.start < window[1] and visit.end > window[0]]
    shown = _that_fit(inside, window, twins)
    return CloseUp(window, tuple(shown), len(inside) - len(shown), twins)


def closest_twins(visits: Sequence[Visit]) -> tuple[Visit, ...]:
    """Return the two overlapping requests, of two services if any, that read the same value in the shortest time."""
    ordered = sorted(visits, key=lambda visit: (visit.read, visit.start))
    pairs = [(one, other) for one, other in pairwise(ordered) if one.read == other.read and other.start < one.end]
    if not pairs:
        return ()
    return min(pairs, key=lambda pair: (pair[0].service == pair[1].service, whole(pair)[1] - whole(pair)[0]))


def longest(rows: Sequence[RowResult]) -> int:
    """Return how many ns the longest row took: all rows are drawn on an axis of this length."""
    return max((end - start for start, end in (whole(row.visits) for row in rows if row.visits)), default=0)


def figure(row: RowResult, length: int) -> str:
    """Draw a row: the whole run, on an axis of ``length`` ns, and the close-up, on an axis of its own."""
    if not row.visits:
        return "<p>No request succeeded, so there is nothing to draw.</p>"
    services = sorted({visit.service for visit in row.visits})
    near = close_up(row.visits)
    start, end = whole(row.visits)
    window = start, max(end, start + length)
    parts = [
        "<h4>The whole run, on the same axis for all rows</h4>",
        *_lanes(row.visits, row.visits, services, window, None),
        _axis(window, window[0]),
    ]
    parts.append(f"<h4>A close-up of {_ms(near.window[1] - near.window[0])}, on an axis of its own</h4>")
    parts += [*_lanes(near.visits, row.visits, services, near.window, near.twins), _axis(near.window, window[0])]
    return "\n".join([*parts, f"<p>{escape(_remark(near))}</p>"])


def _that_fit(inside: Sequence[Visit], window: Span, twins: tuple[Visit, ...]) -> list[Visit]:
    """Leave out what would make a lane too high, first of all what is open before and after the window."""

    def importance(visit: Visit) -> tuple[bool, bool, int]:
        crosses = visit.start < window[0] and visit.end > window[1]
        return visit not in twins, crosses, visit.start

    shown: list[Visit] = []
    for visit in sorted(inside, key=importance):
        lane = [other for other in [*shown, visit] if other.service == visit.service]
        if max(shelves(lane)) < CLOSE_UP_SHELVES:
            shown.append(visit)
    return shown


def _densest(ordered: Sequence[Visit]) -> Sequence[Visit]:
    """Return the sections that follow each other fastest, where the lock goes to another service and back."""

    def merit(some: Sequence[Visit]) -> tuple[int, int]:
        first, last = whole(some)
        return -min(2, sum(one.service != other.service for one, other in pairwise(some))), last - first

    starts = range(max(1, len(ordered) - CLOSE_UP_SECTIONS + 1))
    cuts = [ordered[start : start + CLOSE_UP_SECTIONS] for start in starts]
    return min(cuts, key=merit)


def _padded(span: Span, part: float, within: Span) -> Span:
    pad = int((span[1] - span[0]) * part)
    return max(within[0], span[0] - pad), min(within[1], span[1] + pad)


def _lanes(
    drawn: Sequence[Visit],
    all_: Sequence[Visit],
    services: Sequence[int],
    window: Span,
    twins: tuple[Visit, ...] | None,
) -> list[str]:
    """Draw each service's lane; ``twins`` is None for the whole run, which has no labels."""
    red = crowded(all_)
    lanes: list[str] = []
    for service in services:
        mine = [visit for visit in drawn if visit.service == service]
        lanes.append(f'<p class="lane">service {service}</p>')
        lanes.append(_lane(mine, red, window, twins))
    strip = "".join(f'<rect class="o" {_across(span, window)} y="0" height="8"/>' for span in _seen(red, window))
    lanes.append('<p class="lane">more than one request inside</p>')
    lanes.append(f'<svg class="strip" height="8" role="img" aria-label="overlaps">{strip}</svg>')
    return lanes


def _lane(visits: Sequence[Visit], red: Sequence[Span], window: Span, twins: tuple[Visit, ...] | None) -> str:
    shelf_of = shelves(visits)
    rows = max(shelf_of, default=0) + 1
    shelf = SHELF_HEIGHT if twins is not None else min(SHELF_HEIGHT, LANE_HEIGHT / rows)
    height = rows * shelf
    bars: list[str] = []
    for visit, level in zip(visits, shelf_of, strict=True):
        y, thick = level * shelf, shelf - 2.0 if shelf > 6.0 else shelf
        bars.append(_bar(visit, red, window, twins, y, thick, len(visits) <= TITLES_UP_TO))
    return (
        f'<svg class="lanes" height="{height:.4g}" role="img" aria-label="{len(visits)} sections">{"".join(bars)}</svg>'
    )


def _bar(
    visit: Visit,
    red: Sequence[Span],
    window: Span,
    twins: tuple[Visit, ...] | None,
    y: float,
    thick: float,
    title: bool,
) -> str:
    vertical = f'y="{y:.4g}" height="{thick:.3g}"'
    overlaps = cut(visit, red)
    parts = [f"<title>{escape(_tooltip(visit, overlaps))}</title>"] if title else []
    parts += [f'<rect class="b" {_across(span, window)} {vertical}/>' for span in _seen(rest(visit, overlaps), window)]
    parts += [f'<rect class="o" {_across(span, window)} {vertical}/>' for span in _seen(overlaps, window)]
    if twins is not None:
        if visit in twins:
            parts.append(f'<rect class="t" {_across((visit.start, visit.end), window)} {vertical}/>')
        parts.append(_label(visit, window, y + thick / 2))
    return f"<g>{''.join(parts)}</g>"


def _label(visit: Visit, window: Span, y: float) -> str:
    start, end = max(visit.start, window[0]), min(visit.end, window[1])
    length = window[1] - window[0]
    if end - start < length * LABEL_FROM:
        return ""
    middle = ((start + end) / 2 - window[0]) / length * 100
    return f'<text x="{middle:.2f}%" y="{y:.4g}">{visit.read} → {visit.read + 1}</text>'


def _seen(spans: Sequence[Span], window: Span) -> list[Span]:
    return [span for span in spans if span[0] < window[1] and span[1] > window[0]]


def _across(span: Span, window: Span) -> str:
    length = max(1, window[1] - window[0])
    start, end = max(span[0], window[0]), min(span[1], window[1])
    return f'x="{(start - window[0]) / length * 100:.5g}%" width="{max(0.04, (end - start) / length * 100):.4g}%"'


def _tooltip(visit: Visit, overlaps: Sequence[Span]) -> str:
    token = "" if visit.token is None else f", token {visit.token}"
    text = f"read {visit.read}, wrote {visit.read + 1}, in {_ms(visit.end - visit.start)}{token}"
    shared = sum(end - start for start, end in overlaps)
    return f"{text}; {_ms(shared)} of it beside others" if shared else f"{text}; alone"


def _axis(window: Span, zero: int) -> str:
    first, last = _ms(window[0] - zero), _ms(window[1] - zero)
    return f'<p class="axis"><span>{first}</span><span>{last}</span></p>'


def _remark(near: CloseUp) -> str:
    hidden = f" Not drawn: {near.hidden} more that are open in this time." if near.hidden else ""
    if near.twins:
        read = near.twins[0].read
        said = f"The two framed requests both read {read} and both wrote {read + 1}: one of these two updates is lost."
        return said + hidden
    ordered = sorted(near.visits, key=lambda visit: visit.start)
    if not near.hidden and all(other.read == one.read + 1 for one, other in pairwise(ordered)):
        return "Each request read what the one before it had written."
    return hidden.strip()


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if abs(ns) >= 100_000_000 else f"{ns / 1e6:.3f} ms"

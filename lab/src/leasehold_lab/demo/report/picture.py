"""The result as a static picture for a README: counted and lost updates of each row, and a close-up of what happened.

It carries its own background, and its colors follow the reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from leasehold_lab.demo.report.overlaps import Span, crowded, cut, rest, shelves
from leasehold_lab.demo.report.timeline import close_up
from leasehold_lab.demo.result import DemoResult, RowResult, Visit
from leasehold_lab.demo.rows import WORKS_FOR

WIDTH, MARGIN = 880, 28
LEFT = 300
"""Where the drawings begin; their titles are to the left."""

HEAD, ROW_HEIGHT, FOOT = 92, 118, 44
LANE, SHELF_LIMIT = 30, 2
"""Height of a lane of the close-up, and sections drawn one below the other in it, at most."""

STYLE = """
.page{fill:#fff;stroke:#d9dee4}.ink{fill:#1b2430}.faint{fill:#5c6773}.lane{fill:#eef1f4}.b{fill:#2f74c0}.o{fill:#d3293d}
.good{fill:#14713d}.bad{fill:#b3172b}.on{fill:#fff}
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.big{font-size:20px;font-weight:600}.row{font-size:16px;font-weight:600}.small{font-size:12px}.tiny{font-size:11px;font-weight:600}
@media(prefers-color-scheme:dark){.page{fill:#12171d;stroke:#303a45}.ink{fill:#e4e9ee}.faint{fill:#9aa6b2}.lane{fill:#1f272f}
.b{fill:#4f94df}.o{fill:#e0475a}.good{fill:#58c98a}.bad{fill:#ff7b89}}
"""


def picture(result: DemoResult) -> str:
    """Return the picture as SVG."""
    height = HEAD + ROW_HEIGHT * len(result.rows) + FOOT
    services = "1 service" if result.services == 1 else f"{result.services} services"
    title = f"{result.requests} requests at once, {services}, one counter"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(result.verdict())}">',
        f"<title>{escape(result.verdict())}</title><style>{STYLE}</style>",
        f'<rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        _text(MARGIN, 42, title, "ink big"),
        _text(
            MARGIN,
            66,
            f"Each request reads the counter, works for {WORKS_FOR * 1000:.0f} ms, and writes one more back.",
            "faint",
        ),
        _text(WIDTH - MARGIN, 66, "Each close-up has a scale of its own.", "faint small", anchor="end"),
    ]
    for index, row in enumerate(result.rows):
        parts.append(_row(row, result.services, HEAD + index * ROW_HEIGHT))
    parts.append(_legend(result, height - 20))
    return "\n".join([*parts, "</svg>\n"])


def _row(row: RowResult, services: int, top: float) -> str:
    width = WIDTH - MARGIN - LEFT
    counted, lost_part = width * min(1.0, row.final / row.requests), width * row.lost / row.requests
    number = f"{row.final} of {row.requests}"
    lost = f"{row.lost} lost" if row.lost else "none lost"
    parts = [
        _text(MARGIN, top + 19, row.title, "ink row"),
        _text(MARGIN, top + 40, f"{number}, {lost}", "good" if row.exact else "bad"),
        f'<rect class="b" x="{LEFT}" y="{top + 4}" width="{counted:.1f}" height="20"/>',
        f'<rect class="o" x="{LEFT + counted:.1f}" y="{top + 4}" width="{lost_part:.1f}" height="20"/>',
    ]
    if row.failures:
        parts.append(_text(MARGIN, top + 60, f"{len(row.failures)} errors", "bad"))
    if row.visits:
        parts.append(_lanes(row, min(services, 2), top + 34))
    return "".join(parts)


def _lanes(row: RowResult, services: int, top: float) -> str:
    near = close_up(row.visits)
    red = crowded(row.visits)
    parts: list[str] = []
    for service in range(1, services + 1):
        y = top + (service - 1) * (LANE + 3)
        parts.append(_text(LEFT - 10, y + LANE / 2 + 4, f"service {service}", "faint small", anchor="end"))
        parts.append(f'<rect class="lane" x="{LEFT}" y="{y}" width="{WIDTH - MARGIN - LEFT}" height="{LANE}"/>')
        mine = sorted((v for v in near.visits if v.service == service), key=lambda v: (v not in near.twins, v.start))
        parts.append(_bars(mine, red, near.window, y))
    return "".join(parts)


def _bars(visits: Sequence[Visit], red: Sequence[Span], window: Span, top: float) -> str:
    kept: list[Visit] = []
    for visit in visits:
        if max(shelves([*kept, visit])) < SHELF_LIMIT:
            kept.append(visit)
    levels = shelves(kept)
    shelf = LANE / (max(levels, default=0) + 1)
    parts: list[str] = []
    for visit, level in zip(kept, levels, strict=True):
        vertical = f'y="{top + level * shelf + 1:.1f}" height="{shelf - 2:.1f}"'
        overlaps = cut(visit, red)
        parts += [f'<rect class="b" {_across(span, window)} {vertical}/>' for span in rest(visit, overlaps)]
        parts += [f'<rect class="o" {_across(span, window)} {vertical}/>' for span in overlaps]
        parts.append(_label(visit, window, top + (level + 0.5) * shelf + 4))
    return "".join(parts)


def _label(visit: Visit, window: Span, y: float) -> str:
    start, end = _x(max(visit.start, window[0]), window), _x(min(visit.end, window[1]), window)
    text = f"{visit.read} → {visit.read + 1}"
    if end - start < 8 * len(text):
        return ""
    return _text((start + end) / 2, y, text, "on tiny", anchor="middle")


def _legend(result: DemoResult, y: float) -> str:
    parts = [
        f'<rect class="b" x="{LEFT}" y="{y - 10}" width="11" height="11"/>',
        _text(LEFT + 17, y, "counted, or alone", "faint small"),
    ]
    parts.append(f'<rect class="o" x="{LEFT + 136}" y="{y - 10}" width="11" height="11"/>')
    parts.append(_text(LEFT + 153, y, "lost, or while another request was between read and write", "faint small"))
    parts.append(_text(MARGIN, y, f"leasehold {result.facts.get('leasehold', '')}", "faint small"))
    return "".join(parts)


def _across(span: Span, window: Span) -> str:
    start, end = _x(max(span[0], window[0]), window), _x(min(span[1], window[1]), window)
    return f'x="{start:.1f}" width="{max(0.0, end - start):.1f}"'


def _x(moment: int, window: Span) -> float:
    return LEFT + (moment - window[0]) / max(1, window[1] - window[0]) * (WIDTH - MARGIN - LEFT)


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

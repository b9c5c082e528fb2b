"""The stories of locks as one self-contained HTML page: a table, and a time line of each lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from leasehold.cli.output import printable
from leasehold.observability.history import Interval
from leasehold_lab.demo.report.overlaps import Span, crowded, cut, rest, shelves
from leasehold_lab.pages import color_key, document
from leasehold_lab.record.story import Story

DRAWN = 50  # locks that have a time line, at most
BARS = 1000  # holds in a time line, at most
LANES = 20  # clients in a time line, at most
HEIGHT = 22  # of a lane, in pixels

KEYS = {
    "held": '<rect class="b" x="1" y="1" width="30" height="10"/>',
    "held by two at once": '<rect class="o" x="1" y="1" width="30" height="10"/>',
    "its lease was lost": '<rect class="b lost" x="2" y="2" width="28" height="8"/>',
    "waited before": '<rect class="b fault" x="1" y="4" width="30" height="4"/>',
    "end not recorded: killed, or the record stops": '<rect class="b fault" x="1" y="1" width="30" height="10"/>',
}

CLOCKS = (
    "Times are UTC, by the wall clock of each process. The clocks of two machines may differ, so two holders on "
    "different machines that overlap by less than that difference may not have overlapped. The tokens are exact: the "
    "holder with the higher token came later."
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A hold, with its times in ns."""

    hold: Interval
    start: int
    end: int


def page(stories: Sequence[Story], sources: Sequence[str]) -> str:
    """Return the page, as HTML that is also well-formed XML."""
    parts = [
        "<h1>Who held which lock when</h1>",
        f'<p class="verdict {grade(stories)}">{escape(verdict(stories))}</p>',
        f"<p>{escape(CLOCKS)}</p>",
        _table(stories),
        color_key(KEYS),
        *(_figure(story) for story in stories[:DRAWN] if story.holds),
    ]
    if len(stories) > DRAWN:
        parts.append(f"<p>{len(stories) - DRAWN} more locks are in the table only.</p>")
    parts.append(f"<p>Recorded in: {escape(', '.join(sources))}</p>")
    return document("Who held which lock when", "\n".join(parts))


def grade(stories: Sequence[Story]) -> str:
    """Return whether all is well, as a class of the stylesheet."""
    return "bad" if any(story.pairs or story.lost for story in stories) else "good"


def verdict(stories: Sequence[Story]) -> str:
    """Say in a sentence or two what the record shows."""
    pairs, lost = sum(len(story.pairs) for story in stories), sum(story.lost for story in stories)
    holds = sum(len(story.holds) for story in stories)
    found = f"{_number(holds, 'hold')} of {_number(len(stories), 'lock')}. "
    found += f"Holders that overlap: {_number(pairs, 'pair')}. " if pairs else "No two holders of a lock overlap. "
    return found + (f"Lost: {_number(lost, 'lease')}." if lost else "No lease was lost.")


def _number(count: int, of: str) -> str:
    return f"{count:,} {of}" + "s" * (count != 1)


COLUMNS = ("lock", "holds", "longest hold", "longest wait", "not acquired", "lost", "no end", "overlaps")


def cells(story: Story) -> tuple[str, ...]:
    """Return the cells of the table for a lock."""
    numbers = (story.timeouts, story.lost, story.open, len(story.pairs))
    times = seconds(story.longest), seconds(story.longest_wait)
    return printable(story.name), f"{len(story.holds):,}", *times, *(f"{number:,}" for number in numbers)


def seconds(length: float) -> str:
    """Return a length of time for people."""
    if length < 1:
        return f"{length * 1000:.3g} ms"
    return f"{length:.1f} s" if length < 120 else f"{length / 60:.1f} min"


def _table(stories: Sequence[Story]) -> str:
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows: list[str] = []
    for story in stories:
        grades = {"lost": "bad" if story.lost else "", "overlaps": "bad" if story.pairs else ""}
        pairs = zip(COLUMNS, cells(story), strict=True)
        data = (f'<td data-column="{name}" class="{grades.get(name, "")}">{escape(cell)}</td>' for name, cell in pairs)
        rows.append(f"<tr>{''.join(data)}</tr>")
    return f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _figure(story: Story) -> str:
    bars = [Bar(hold, _ns(hold.start), _ns(hold.end or hold.start)) for hold in story.holds]
    red = crowded([bar for bar in bars if bar.hold.ending != "held"]) if story.pairs else []
    shown = sorted(bars, key=lambda bar: (not cut(bar, red), bar.hold.ending == "released", -bar.start))[:BARS]
    window = min(bar.start for bar in shown), max(bar.end for bar in shown)
    owners = sorted(
        {bar.hold.owner for bar in shown}, key=lambda owner: min(b.start for b in shown if b.hold.owner == owner)
    )
    place = printable(f"{story.store}, namespace {story.namespace}")
    parts = [f"<h3>{escape(printable(story.name))}</h3><p>{escape(place)}</p>"]
    for owner in owners[:LANES]:
        parts.append(f'<p class="lane">{escape(printable(owner))}</p>')
        parts.append(_lane([bar for bar in shown if bar.hold.owner == owner], red, window))
    parts.append(f'<p class="axis"><span>{_clock(window[0])}</span><span>{_clock(window[1])}</span></p>')
    hidden = len(bars) - sum(bar.hold.owner in owners[:LANES] for bar in shown)
    if hidden:
        parts.append(
            f"<p>Not drawn: {hidden:,} more holds; those with overlaps and losses, and the latest, are shown.</p>"
        )
    return f"<section>{''.join(parts)}</section>"


def _lane(bars: Sequence[Bar], red: Sequence[Span], window: Span) -> str:
    levels = shelves(bars)
    height = HEIGHT / (max(levels, default=0) + 1)
    drawn = "".join(_bar(bar, red, window, level * height, height) for bar, level in zip(bars, levels, strict=True))
    return f'<svg class="lanes" height="{HEIGHT}">{drawn}</svg>'


def _bar(bar: Bar, red: Sequence[Span], window: Span, top: float, height: float) -> str:
    vertical = f'y="{top:.4g}" height="{height:.4g}"'
    both = [] if bar.hold.ending == "held" else cut(bar, red)
    kind = {"held": "b fault", "lost": "b lost"}.get(bar.hold.ending, "b")
    parts = [f"<title>{escape(_tooltip(bar.hold, bool(both)))}</title>"]
    if bar.hold.waited > 0:
        waited = f'y="{top + height / 3:.4g}" height="{height / 3:.4g}"'
        parts.append(
            f'<rect class="b fault" {_across((bar.start - _ns(bar.hold.waited), bar.start), window)} {waited}/>'
        )
    alone = rest(bar, both) or ([] if both else [(bar.start, bar.end)])  # one without length has no rest
    parts += [f'<rect class="{kind}" {_across(span, window)} {vertical}/>' for span in alone]
    parts += [f'<rect class="o" {_across(span, window)} {vertical}/>' for span in both]
    return f"<g>{''.join(parts)}</g>"


def _tooltip(hold: Interval, both: bool) -> str:
    ends = {"held": "its end is not recorded", "unconfirmed": "the store did not confirm its release"}
    ending = ends.get(hold.ending, hold.ending)
    text = f"token {hold.token}, from {_clock(_ns(hold.start))}, {seconds(hold.seconds)}, {ending}"
    text += f": {printable(hold.why)}" if hold.why else ""
    text += f"; waited {seconds(hold.waited)}"
    return f"{text}; another held it at the same time" if both else text


def _across(span: Span, window: Span) -> str:
    length = max(1, window[1] - window[0])
    start, end = max(span[0], window[0]), min(span[1], window[1])
    return f'x="{(start - window[0]) / length * 100:.5g}%" width="{max(0.04, (end - start) / length * 100):.4g}%"'


def _ns(moment: float) -> int:
    return int(moment * 1e9)


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

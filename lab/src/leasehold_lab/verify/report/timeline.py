"""A run as SVG: a lane for each thread or task, waits and holds as bars, faults as bands behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from leasehold_lab.history import Hold, Violation
from leasehold_lab.verify.deployments import known
from leasehold_lab.verify.faults.client_faults import SERVERS, InjectedFault
from leasehold_lab.verify.run import Outcome

Scale = Callable[[float], float]
"""Converts a moment to a horizontal position, in pixels."""

WIDTH, LABEL, LANE = 1200.0, 64.0, 12.0
"""In pixels: the width of the picture and of the lanes' names, and the height of a lane."""

COLORS = ("#1a7f5a", "#2b6cb0", "#8a5cc2", "#b7791f", "#0d8a99", "#b83280", "#5a6b1f", "#4a5568")
"""The colors of names, in turn."""

BAND = {"stall": "#888", "kill": "#c00", "block": "#888"}
"""Colors of faults of processes."""

CONNECTIONS_BAND = "#e08a00"
"""The color of faults of connections."""

SERVERS_BAND = "#7a5cff"
"""The color of server faults, which lie behind all lanes."""

MARGIN = 0.6
"""The part of a violation's length that is shown before and after it."""


def whole(outcome: Outcome) -> str:
    """Draw the whole run."""
    return _draw(outcome, outcome.begin, max(outcome.end, outcome.begin + 0.001), outcome.history.holds, ())


def close_up(outcome: Outcome, violation: Violation) -> str:
    """Draw the time around a violation: all operations on that name, with those of the violation framed."""
    holds = [one for one in violation.operations if isinstance(one, Hold)]
    if not holds:
        return ""
    name = holds[0].name
    begin = min(hold.asked if hold.granted is None else hold.granted for hold in holds)
    end = max(min(hold.until, outcome.end) for hold in holds)
    pad = max(0.01, (end - begin) * MARGIN)
    shown = [hold for hold in outcome.history.holds if hold.name == name]
    return _draw(outcome, begin - pad, end + pad, shown, holds)


def _draw(outcome: Outcome, begin: float, end: float, holds: Iterable[Hold], framed: Sequence[Hold]) -> str:
    inside = [hold for hold in holds if hold.asked < end and min(hold.until, end) > begin]
    lanes = sorted({hold.who for hold in inside}, key=_lane_order)
    names = sorted({hold.name for hold in outcome.history.holds})
    height, descriptions = LANE * len(lanes) + 22, known(outcome.settings.servers)

    def x(moment: float) -> float:
        at = (min(max(moment, begin), end) - begin) / (end - begin)
        return LABEL + at * (WIDTH - LABEL)

    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="100%" role="img" aria-label="timeline">'
    ]
    for row, who in enumerate(lanes):
        top = row * LANE
        parts.append(f'<text class="who" x="0" y="{top + LANE - 3:.1f}">{escape(who)}</text>')
        parts += [
            _band(fault, top, x, descriptions[fault.kind]) for fault in outcome.faults if _hits(fault, who, begin, end)
        ]
        parts += [
            _bar(hold, top, x, COLORS[names.index(hold.name) % len(COLORS)], hold in framed)
            for hold in inside
            if hold.who == who
        ]
        parts += [
            _stroke(hold.notified, top, x) for hold in inside if hold.who == who and _is_notified(hold, begin, end)
        ]
    parts += _axis(outcome, begin, end, height, x)
    return "".join(parts) + "</svg>"


def _lane_order(who: str) -> tuple[int, ...]:
    return tuple(int(part) for part in who.split(".") if part.isdecimal())


def _hits(fault: InjectedFault, who: str, begin: float, end: float) -> bool:
    return fault.who in (SERVERS, who.partition(".")[0]) and fault.begin < end and fault.end > begin


def _band(fault: InjectedFault, top: float, x: Scale, description: str) -> str:
    left, right = x(fault.begin), x(fault.end)
    color = SERVERS_BAND if fault.who == SERVERS else BAND.get(fault.kind, CONNECTIONS_BAND)
    return (
        f'<rect class="fault" x="{left:.2f}" y="{top:.1f}" width="{max(1.0, right - left):.2f}" height="{LANE:.1f}" '
        f'fill="{color}"><title>{fault.kind}: {escape(description)}</title></rect>'
    )


def _bar(hold: Hold, top: float, x: Scale, color: str, framed: bool) -> str:
    title = f"<title>{escape(str(hold))}</title>"
    parts = list[str]()
    if hold.queued is not None or hold.granted is None:
        left, right = x(hold.asked), x(hold.until if hold.granted is None else hold.granted)
        middle = top + LANE / 2
        parts.append(
            f'<line x1="{left:.2f}" x2="{max(left + 0.2, right):.2f}" y1="{middle:.1f}" y2="{middle:.1f}" '
            f'stroke="{color}" stroke-width="1" stroke-dasharray="1.5 1.5">{title}</line>'
        )
    if hold.granted is not None:
        left, right = x(hold.granted), x(hold.until)
        frame = ' class="framed"' if framed else ""
        parts.append(
            f'<rect{frame} x="{left:.2f}" y="{top + 1.5:.1f}" width="{max(0.4, right - left):.2f}" '
            f'height="{LANE - 3:.1f}" fill="{color}">{title}</rect>'
        )
    return "".join(parts)


def _is_notified(hold: Hold, begin: float, end: float) -> bool:
    """Return whether its holder was notified of a loss in the time that is shown."""
    return hold.notified is not None and begin <= hold.notified <= end


def _stroke(notified: float | None, top: float, x: Scale) -> str:
    at = x(notified or 0.0)
    return (
        f'<line class="lost" x1="{at:.2f}" x2="{at:.2f}" y1="{top:.1f}" '
        f'y2="{top + LANE:.1f}"><title>loss notice</title></line>'
    )


def _axis(outcome: Outcome, begin: float, end: float, height: float, x: Scale) -> list[str]:
    parts = list[str]()
    for tick in range(7):
        moment = begin + (end - begin) * tick / 6
        anchor = "start" if tick == 0 else "end" if tick == 6 else "middle"
        since = moment - outcome.begin
        parts.append(
            f'<text class="axis" x="{x(moment):.1f}" y="{height - 6:.1f}" text-anchor="{anchor}">{since:.3f} s</text>'
        )
    return parts

"""A run as one self-contained HTML page: verdict, figures, timeline, and each violation with a close-up."""

from __future__ import annotations

from html import escape

from leasehold_lab.history import Promise, Violation
from leasehold_lab.pages import color_key, definitions, document
from leasehold_lab.verify.deployments import known
from leasehold_lab.verify.report.figures import Figures
from leasehold_lab.verify.report.run_information import facts, repeat
from leasehold_lab.verify.report.timeline import BAND, COLORS, CONNECTIONS_BAND, SERVERS_BAND, close_up, whole
from leasehold_lab.verify.run import Outcome

READING = (
    "Each lane is a thread or task. Hover over anything for its description; zoom with the browser. "
    "Lanes count seconds from the start of the run. The lists give readings of the boot-time clock of this machine, "
    "which was at {:.4f} s then."
)


def _sample(band: str) -> str:
    return f'<rect class="fault" width="32" height="12" fill="{band}"/>'


KEY = {
    "a hold, in the color of its name, from the grant to the end of its claim": (
        f'<rect y="2" width="32" height="8" fill="{COLORS[0]}"/>'
    ),
    "a wait, or an acquire that was never answered": (
        f'<line x2="32" y1="6" y2="6" stroke="{COLORS[0]}" stroke-dasharray="1.5 1.5"/>'
    ),
    "the notice to a holder that it has lost its lock": '<line class="lost" x1="16" x2="16" y2="12"/>',
    "a hold that belongs to a violation": (
        f'<rect class="framed" x="1" y="2" width="30" height="8" fill="{COLORS[0]}"/>'
    ),
    "a client is stopped, or blocks": _sample(BAND["stall"]),
    "a client was killed": _sample(BAND["kill"]),
    "a client's connections are slow or cut": _sample(CONNECTIONS_BAND),
    "a fault of the servers": _sample(SERVERS_BAND),
}
"""What the timeline shows, each with a sample of it."""

EXCUSED = (
    "A server fault made the servers forget grants, or made them unavailable. The store's assumptions allow claims "
    "to overlap for a lease then, and waiters to wait. Tokens and guarded writes are never excused."
)

SHOWN = 20
"""The most violations that are drawn."""


def page(outcome: Outcome, figures: Figures) -> str:
    """Return the page, as HTML that is also well-formed XML."""
    shown = outcome.verdict.violations[:SHOWN]
    return document(
        "leasehold verify",
        f"<h1>{escape(_headline(outcome))}</h1>{_promises(outcome)}"
        + f"<p>{escape(READING.format(outcome.begin))}</p>{color_key(KEY)}"
        + "".join(_violation(outcome, number, one) for number, one in enumerate(shown, 1))
        + (f"<p>{len(outcome.verdict.violations) - SHOWN} more are not drawn.</p>" if len(shown) == SHOWN else "")
        + _outside(outcome)
        + f"<h2>Figures</h2>{definitions(figures.lines())}<h2>Timeline</h2>{whole(outcome)}"
        + f"<h2>Faults</h2>{_faults(outcome)}<h2>Run</h2>{definitions(facts(outcome))}"
        + f"<h2>Repeat this run</h2><pre>{escape(repeat(outcome))}</pre>",
    )


def _headline(outcome: Outcome) -> str:
    if outcome.broken:
        return "A client failed"
    if outcome.verdict.ok:
        return "Every promise was kept"
    return f"A promise was broken {_times(len(outcome.verdict.violations))}"


def _promises(outcome: Outcome) -> str:
    rows = "".join(
        f"<tr><td>{escape(promise.value)}</td><td>{_kept(outcome.verdict.by_promise.get(promise, 0))}</td></tr>"
        for promise in Promise
    )
    failed = "".join(f"<p class='bad'>client {who}: {escape(words)}</p>" for who, words in outcome.broken.items())
    return f"{failed}<table><thead><tr><th>promise</th><th></th></tr></thead><tbody>{rows}</tbody></table>"


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def _kept(count: int) -> str:
    return f'<span class="bad">broken {_times(count)}</span>' if count else '<span class="good">kept</span>'


def _violation(outcome: Outcome, number: int, violation: Violation) -> str:
    text = "\n".join(str(one) for one in violation.operations)
    return (
        f"<h3>{number}. {escape(violation.promise.value)}: broken</h3><p>{escape(violation.what)}</p>"
        f"{close_up(outcome, violation)}<pre>{escape(text)}</pre>"
    )


def _outside(outcome: Outcome) -> str:
    """List the violations that a server fault excuses."""
    if not outcome.excused:
        return ""
    shown = outcome.excused[:SHOWN]
    return f"<h2>Excused violations</h2><p>{escape(EXCUSED)} Seen: {_times(len(outcome.excused))}.</p>" + "".join(
        f"<pre>{escape(str(one))}</pre>{close_up(outcome, one)}" for one in shown
    )


def _faults(outcome: Outcome) -> str:
    descriptions = known(outcome.settings.servers)
    made = {kind: [fault for fault in outcome.faults if fault.kind == kind] for kind in outcome.settings.faults}
    lines = dict[str, str]()
    for kind, done in made.items():
        if kind in outcome.left_out:
            lines[kind] = f"not injected: {outcome.left_out[kind]}"
        else:
            often = "by the clients themselves" if kind == "block" else _times(len(done))
            lines[kind] = f"{descriptions[kind]}: {often}"
    return definitions(lines)

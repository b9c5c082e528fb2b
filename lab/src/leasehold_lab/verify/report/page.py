"""A run as one self-contained HTML page: verdict, figures, timeline, and each violation with a close-up."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from leasehold_lab.history import Promise, Violation
from leasehold_lab.verify.deployments import known
from leasehold_lab.verify.report.figures import Figures
from leasehold_lab.verify.report.run_information import facts, repeat
from leasehold_lab.verify.report.timeline import close_up, whole
from leasehold_lab.verify.run import Outcome

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1240px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: .6em 0 2em }
th, td { padding: .25em .9em; text-align: left; border-bottom: 1px solid #8884 }
.kept { color: #1a7f5a; font-weight: 600 } .broken { color: #c5221f; font-weight: 600 }
dt { font-weight: 600 } dd { margin: 0 0 .4em }
pre { overflow-x: auto; padding: .7em; background: #8882; font-size: 13px }
svg { border-top: 1px solid #8884; border-bottom: 1px solid #8884; margin: .4em 0 }
svg text { font: 9px system-ui, sans-serif; fill: currentColor }
.fault { fill-opacity: .28 } .framed { stroke: #c5221f; stroke-width: 2 } .lost { stroke: #c5221f; stroke-width: 2 }
"""

READING = (
    "Each lane is a thread or task. A bar is a hold, in its name's color, from the grant to the end of its claim. "
    "A dotted line is a wait, or an acquire that was never answered. A red stroke marks the notice to a holder that "
    "it has lost its lock. Bands behind a lane are faults of that client; violet bands are faults of the servers. "
    "Hover over anything for its description; zoom with the browser."
)

CLOCK = "Times in the lists are readings of the machine's clock: {:.4f} there is 0 s below the lanes."

EXCUSED = (
    "A server fault made the servers forget grants, or made them unavailable. The store's assumptions allow claims "
    "to overlap for a lease then, and waiters to wait. Tokens and guarded writes are never excused."
)

SHOWN = 20
"""The most violations that are drawn."""


def page(outcome: Outcome, figures: Figures) -> str:
    """Return the page, as HTML that is also well-formed XML."""
    shown = outcome.verdict.violations[:SHOWN]
    return (
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width"/><title>leasehold verify</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(_headline(outcome))}</h1>{_promises(outcome)}"
        + f"<p>{escape(READING)} {escape(CLOCK.format(outcome.begin))}</p>"
        + "".join(_violation(outcome, number, one) for number, one in enumerate(shown, 1))
        + (f"<p>{len(outcome.verdict.violations) - SHOWN} more are not drawn.</p>" if len(shown) == SHOWN else "")
        + _outside(outcome)
        + f"<h2>Figures</h2>{_list(figures.lines())}<h2>Timeline</h2>{whole(outcome)}"
        + f"<h2>Faults</h2>{_faults(outcome)}<h2>Run</h2>{_list(facts(outcome))}"
        + f"<h2>Repeat this run</h2><pre>{escape(repeat(outcome))}</pre></body></html>\n"
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
    failed = "".join(f"<p class='broken'>client {who}: {escape(words)}</p>" for who, words in outcome.broken.items())
    return f"{failed}<table><thead><tr><th>promise</th><th></th></tr></thead><tbody>{rows}</tbody></table>"


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def _kept(count: int) -> str:
    return f'<span class="broken">broken {_times(count)}</span>' if count else '<span class="kept">kept</span>'


def _violation(outcome: Outcome, number: int, violation: Violation) -> str:
    text = "\n".join(str(one) for one in violation.operations)
    return (
        f"<h3>{number}. {escape(violation.promise.value)}: broken</h3><p>{escape(violation.what)}</p>"
        f"{close_up(outcome, violation)}<pre>{escape(text)}</pre>"
    )


def _outside(outcome: Outcome) -> str:
    """List the violations that a server fault excuses."""
    if not outcome.outside:
        return ""
    shown = outcome.outside[:SHOWN]
    return f"<h2>Excused violations</h2><p>{escape(EXCUSED)} Seen: {_times(len(outcome.outside))}.</p>" + "".join(
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
    return _list(lines)


def _list(pairs: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs.items()) + "</dl>"

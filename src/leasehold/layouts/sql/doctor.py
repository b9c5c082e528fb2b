"""What the server and the table of another library mean for the promises of its locks."""

from __future__ import annotations

import math

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.layouts.sql.format import Format
from leasehold.stores._sql.transport import Refused, Row, SQLTransport

CLOSE = 0.5
"""Seconds of clock difference that are always accepted: reading a clock takes so long on a busy machine."""

LONGEST_MARGIN = 60.0
"""Seconds of clock difference above which no margin is suggested."""

WITHIN = 5.0
"""Seconds for all statements."""


async def examine(runtime: Runtime, layout: Format, transport: SQLTransport) -> list[Finding]:
    """Return all findings; an unreachable server raises as for any other operation."""
    first = layout.dialect.first
    *_, ((clock, version),) = await transport.transact(lambda tx: tx.ask(*first, layout.clock), within=WITHIN)
    means = "tokens are timestamps and do not fence, and the other programs are not notified of a lost lease"
    findings = [
        Finding(Severity.OK, "server", str(version)),
        Finding(Severity.NOTE, "layout", f"{layout.name}: shared with {layout.of}", means, "see docs/interop.md"),
        _clock(runtime, layout, clock),
    ]
    try:
        *_, rows = await transport.transact(lambda tx: tx.ask(*first, layout.look_at()), within=WITHIN)
    except Refused as error:
        found = layout.wrong_table(error.code) or error.message
        return [*findings, Finding(Severity.ERROR, layout.table, found, "no lock can be acquired")]
    return [*findings, Finding(Severity.OK, layout.table, f"{len(rows)} rows"), *_others(layout, rows)]


def _clock(runtime: Runtime, layout: Format, clock: int) -> Finding:
    apart = (clock - runtime.wall_us()) / 1e6
    found = f"{apart:+.1f} s from this host's"
    means = "our leases end by this clock; the other programs use the clocks of their hosts"
    if abs(apart) <= max(layout.margin, CLOSE):
        return Finding(Severity.OK, "clock", found, means)
    remedy = "run NTP on the server and on the hosts of the other programs"
    return Finding(Severity.WARNING, "clock", found, f"{means}; margin={layout.margin:g} may be too small", remedy)


def _others(layout: Format, rows: list[Row]) -> list[Finding]:
    """Compare the server's clock with the times that other programs wrote: none may be in the future."""
    ahead = [(since - now) / 1e6 for _, holder, since, _, now in rows if not layout.owner_of(holder)[2]]
    worst = max(ahead, default=0.0)
    if worst <= 0:
        return []
    found = f"a row is {worst:.1f} s in the future"
    means = f"the clock of a program is ahead by that or more: it takes our lock early by that less {layout.margin:g} s"
    severity = Severity.ERROR if worst > layout.margin else Severity.NOTE
    remedy = "its clock or its time zone is wrong"
    if worst < LONGEST_MARGIN:
        remedy = f"run NTP on its host; until then use margin={math.ceil(max(2 * worst, layout.margin))} or more"
    return [Finding(severity, "clocks of other programs", found, means, remedy)]

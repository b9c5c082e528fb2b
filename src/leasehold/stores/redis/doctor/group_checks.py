"""What the facts about several servers mean for the promises: small checks, as in ``checks.py``.

A failover is safe for what was granted before it only if the old primary has stopped granting when the new one begins,
and the new one knows of all grants. Neither is certain in Redis; these checks say how far it is from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from leasehold._model import Finding, Severity

OK, NOTE, WARNING, ERROR = Severity

APART = 0.1
"""Seconds between the clocks of two servers from which on it is worth a note: a failover changes leases by so much."""

FAR_APART = 1.0
"""Seconds from which on it is worth a warning."""

ONE_OF_MANY = ("clock", "latency")
"""Findings that differ a little from server to server; the worst stands for all."""


def merged(found: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Return the findings of several servers, by address, as few as there are different ones."""
    each = [(where, finding) for where, findings in found.items() for finding in findings]
    subjects = list(dict.fromkeys(finding.subject for _, finding in each))
    result: list[Finding] = []
    for subject in subjects:
        those = [(where, finding) for where, finding in each if finding.subject == subject]
        if subject in ONE_OF_MANY:
            where, worst = max(those, key=lambda pair: pair[1].severity)
            result.append(replace(worst, found=f"{worst.found} (at {where})"))
            continue
        those.sort(key=lambda pair: (pair[1].severity, pair[1].found, pair[1].meaning, pair[1].remedy))
        for same, some in groupby(those, key=lambda pair: pair[1]):
            places = [where for where, _ in some]
            where = f"all {len(found)} nodes" if len(places) == len(found) else ", ".join(places)
            shown = same.found if subject == "server" else f"{same.found} ({where})"
            result.append(replace(same, found=shown))
    return result


def clocks(offsets: Mapping[str, float], silent: Sequence[str]) -> Finding | None:
    """Compare the clocks of servers, each in seconds ahead of ours."""
    if len(offsets) < 2:
        return None
    first, last = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
    apart = offsets[last] - offsets[first]
    found = f"{apart:.3f} s apart, of {len(offsets)} servers"
    if silent:
        found += f"; not asked: {', '.join(silent)}"
    meaning = (
        "leases that reached another server count on its clock: at a failover they end by so much too early or late"
    )
    if apart < APART:
        return Finding(OK, "clocks of the servers", found)
    found += f" ({first} is behind {last})"
    severity = NOTE if apart < FAR_APART else WARNING
    return Finding(
        severity, "clocks of the servers", found, f"{meaning} (S1)", "let NTP slew the clocks of all servers"
    )


def cut_off(least: int | None, lag: int | None, detection: float, by: str) -> Finding | None:
    """Say how long a primary that was cut off goes on granting beside its successor; ``detection`` in seconds."""
    if least is None or lag is None:
        return None
    found = f"min-replicas-to-write {least}, min-replicas-max-lag {lag} s; {by} {detection:g} s"
    if least == 0 or lag == 0:
        meaning = "a primary that was cut off goes on granting to its side, beside its successor (S1); tokens tell (S0)"
        remedy = f"CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag {max(1, int(detection))} on all servers"
        return Finding(WARNING, "split brain", found, meaning, remedy)
    if lag > detection:
        meaning = f"a primary that was cut off may grant for {lag - detection:g} s beside its successor (S1)"
        return Finding(WARNING, "split brain", found, meaning, f"min-replicas-max-lag at most {max(1, int(detection))}")
    return Finding(OK, "split brain", found, "a primary that was cut off stops granting before it has a successor")

"""The checks of `leasehold doctor` on several servers together; matching on one server are in ``checks.py``.

Earlier grants survive a failover only if the old primary stops granting before the new one begins, and the new one
knows all grants. Neither is certain in Redis; these checks say what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from leasehold._model import Finding, Severity

OK, NOTE, WARNING, ERROR = Severity

APART = 0.1
"""Seconds between the clocks of two servers: more is worth a note, since a failover changes leases by so much."""

FAR_APART = 1.0
"""Seconds: more is worth a warning."""

LATE = 2
"""Seconds for which a primary may grant beyond its lag: it counts in whole seconds, and looks once a second."""

ONE_OF_MANY = ("clock", "latency")
"""Findings that differ a little from server to server; only the worst is shown."""


def merged(found: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Return the findings on several servers, given by address; equal ones are joined."""
    each = [(where, finding) for where, findings in found.items() for finding in findings]
    subjects = list(dict.fromkeys(finding.subject for _, finding in each))
    result: list[Finding] = []
    for subject in subjects:
        matching = [(where, finding) for where, finding in each if finding.subject == subject]
        if subject in ONE_OF_MANY:
            where, worst = max(matching, key=lambda pair: pair[1].severity)
            result.append(replace(worst, found=f"{worst.found} (at {where})"))
            continue
        matching.sort(key=lambda pair: (pair[1].severity, pair[1].found, pair[1].meaning, pair[1].remedy))
        for same, some in groupby(matching, key=lambda pair: pair[1]):
            places = [where for where, _ in some]
            where = f"all {len(found)} nodes" if len(places) == len(found) else ", ".join(places)
            shown = same.found if subject == "server" else f"{same.found} ({where})"
            result.append(replace(same, found=shown))
    return result


def clocks(offsets: Mapping[str, float], silent: Sequence[str], when: str = "at a failover") -> Finding | None:
    """Compare the clocks of servers, each in seconds ahead of ours; ``when`` leases come to another clock."""
    if len(offsets) < 2:
        return None
    first, last = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
    apart = offsets[last] - offsets[first]
    found = f"{apart:.3f} s apart, of {len(offsets)} servers"
    if silent:
        found += f"; no reply from: {', '.join(silent)}"
    if apart < APART:
        return Finding(OK, "clocks of the servers", found)
    meaning = f"a lease ends by the clock of its server: {when} leases end by so much too early or late"
    found += f" ({first} is behind {last})"
    severity, remedy = NOTE if apart < FAR_APART else WARNING, "let NTP slew the clocks of all servers"
    return Finding(severity, "clocks of the servers", found, f"{meaning} (timed exclusion)", remedy)


def cut_off(least: int | None, lag: int | None, detection: float, by: str) -> Finding | None:
    """Check how long a primary that was cut off grants alongside its successor; ``detection`` in seconds."""
    if least is None or lag is None:
        return None
    most = int(detection - LATE)
    slower = "" if most >= 1 else f", and {by} of {1 + LATE} s or more"
    found = f"min-replicas-to-write {least}, min-replicas-max-lag {lag} s; {by} {detection:g} s"
    if least == 0 or lag == 0:
        meaning = (
            "a primary that was cut off keeps granting alongside its successor (timed exclusion); tokens reveal it"
        )
        remedy = f"CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag {max(1, most)} on all servers{slower}"
        return Finding(WARNING, "split brain", found, meaning, remedy)
    if (over := lag + LATE - detection) > 0:
        meaning = f"a primary that was cut off may grant for {over:g} s alongside its successor (timed exclusion)"
        remedy = f"min-replicas-max-lag {1 if slower else f'at most {most}'}{slower}"
        return Finding(WARNING, "split brain", found, meaning, remedy)
    return Finding(OK, "split brain", found, "a primary that was cut off stops granting before its successor begins")

"""Decides which violations a fault of the servers excuses, and for how long.

Two kinds of promises are never excused: increasing tokens (and with them fenced writes), and loss notices. A fault
excuses only what no lock can keep without its servers: an overlap with a hold that the servers forgot, and late or
unordered service while they are down.

A hold that was granted before the data were lost ends at its last deadline, at most one lease after the loss. After
that, an overlap is not excused. Nor is an overlap of two holds that were both granted after the loss. This needs no
tolerance. A lease starts before its request is sent. So a hold whose lease starts after the loss was granted after
the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from leasehold._url import StoreURL
from leasehold_lab.history import Bounds, History, Hold, Promise, Try, Verdict, Violation, Write, check

WAKES = 0.3
"""Seconds after the renewal of the queue entry (at a third of the lease) until a lost message is noticed."""

NOTIFIED_WITHIN = 0.05
"""Seconds after the deadline within which a holder that can run must be notified, however busy the machine."""

GIVES_UP = 2.0
"""Leases after which a client has given up a dropped hold. It does so at the next renewal, with or without a reply."""

LIVENESS = (Promise.WAKE_UP, Promise.FIFO, Promise.AVAILABILITY)
"""Promises that need available servers."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """A time in which some promises are not in force.

    Attributes:
        key: the fault that is the reason.
        begin: when it began, by the history's clock.
        end: when the servers served again.
        served: when all clients had reconnected, and the holds of dead clients had expired.
        forgets: when the last hold that was granted before `end` has expired; None if nothing was forgotten.

    """

    key: str
    begin: float
    end: float
    served: float
    forgets: float | None = None

    def excuses(self, violation: Violation) -> bool:
        """Return whether this suspension excuses a violation."""
        if violation.promise in LIVENESS:
            begin, end = _spans(violation)
            return begin <= self.served and end >= self.begin
        if self.forgets is None or not _exclusive(violation):
            return False
        granted = [one for one in violation.operations if isinstance(one, Hold) and one.granted is not None]
        moments = [hold.granted or 0.0 for hold in granted]
        moments += [one.at for one in violation.operations if isinstance(one, Write)]
        return self.begin <= max(moments) <= self.forgets and any(map(self._may_forget, granted))

    def _may_forget(self, hold: Hold) -> bool:
        """Return whether the servers may have granted it before the loss, whenever the reply came."""
        return (hold.asked if hold.since is None else hold.since) <= self.end


def judge(
    history: History, lease: float, url: StoreURL, suspensions: Sequence[Suspension]
) -> tuple[Verdict, tuple[Violation, ...]]:
    """Check a history; return the verdict, and separately the excused violations."""
    linearizable = url.scheme not in ("redlock", "redlocks")
    woken, gives_up = lease / 3 + WAKES, GIVES_UP * lease
    verdict = check(history, Bounds(NOTIFIED_WITHIN, woken, linearizable, gives_up=gives_up))
    excused = excused_by(verdict.violations, suspensions)
    inside = tuple(one for one in verdict.violations if one not in excused)
    counts = {promise: sum(one.promise is promise for one in inside) for promise in Promise}
    return replace(verdict, violations=inside, by_promise=counts), excused


def excused_by(violations: Iterable[Violation], suspensions: Sequence[Suspension]) -> tuple[Violation, ...]:
    """Return the violations that a suspension excuses."""
    return tuple(one for one in violations if any(suspension.excuses(one) for suspension in suspensions))


def _exclusive(violation: Violation) -> bool:
    """Return whether a violation shows two holds at the same time.

    Two grants whose requests overlap in time have no order. If the later reply has the smaller token, then both held
    at the same time, and tokens did not decrease.
    """
    if violation.promise is Promise.EXCLUSION:
        return True
    holds = [one for one in violation.operations if isinstance(one, Hold)]
    return (
        violation.promise is Promise.TOKENS
        and len(holds) == 2
        and holds[0].token != holds[1].token
        and max(hold.asked for hold in holds) < min(hold.granted or 0.0 for hold in holds)
    )


def _spans(violation: Violation) -> tuple[float, float]:
    """Return the time in which the affected clients waited, were refused, or were overtaken."""
    waited = violation.operations if violation.promise is Promise.FIFO else violation.operations[-1:]
    spans = [_span(one) for one in waited]
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _span(one: Hold | Try | Write) -> tuple[float, float]:
    if isinstance(one, Write):
        return one.at, one.at
    if isinstance(one, Try):
        return one.asked, one.answered
    return one.asked, one.until if one.granted is None else one.granted

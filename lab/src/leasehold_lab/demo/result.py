"""What a run of the demo found: plain values, and the numbers that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from leasehold_lab.demo.report.overlaps import most_at_once, overlapping_pairs
from leasehold_lab.demo.rows import TITLES, Guard


@dataclass(frozen=True, slots=True)
class Visit:
    """One request that was answered with success.

    Attributes:
        service: number of the service that answered, from 1.
        start: its boot-time clock in ns, under the row's lock, before the counter was read.
        end: likewise after it was written.
        read: the value that it read; it wrote one more.
        token: fencing token of its hold, where the row has one.
        latency: seconds from opening the connection to the last byte of the answer.

    """

    service: int
    start: int
    end: int
    read: int
    token: int | None
    latency: float


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that was not answered with success, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row.

    Attributes:
        seconds: from the first connection to the last answer.
        final: what the counter said at the end.

    """

    guard: Guard
    requests: int
    final: int
    seconds: float
    visits: tuple[Visit, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def title(self) -> str:
        """What the row is called."""
        return TITLES[self.guard]

    @property
    def lost(self) -> int:
        """Requests that were answered with success and are missing in the counter."""
        return max(0, len(self.visits) - self.final)

    @property
    def exact(self) -> bool:
        """Whether every request was answered and counted once."""
        return self.final == self.requests and not self.failures

    @property
    def rate(self) -> float:
        """Successful requests per second."""
        return len(self.visits) / self.seconds if self.seconds > 0 else 0.0

    @property
    def overlapping_pairs(self) -> int:
        """Pairs of requests that were between read and write at the same time."""
        return overlapping_pairs(self.visits)

    @property
    def most_at_once(self) -> int:
        """The largest number of requests between read and write at the same time."""
        return most_at_once(self.visits)

    @property
    def reasons(self) -> Mapping[str, int]:
        """How often requests failed, by reason, most frequent first."""
        return dict(Counter(failure.reason for failure in self.failures).most_common())

    def latency_ms(self, percent: float) -> float | None:
        """Return the latency that ``percent`` of the successful requests did not exceed; None if none succeeded."""
        if not self.visits:
            return None
        ordered = sorted(visit.latency for visit in self.visits)
        rank = max(1, -(-len(ordered) * percent // 100))  # nearest rank, rounded up
        return ordered[int(rank) - 1] * 1000

    def as_json(self) -> dict[str, object]:
        """Return the row for machines."""
        return {
            "row": self.guard.value,
            "title": self.title,
            "requests": self.requests,
            "answered": len(self.visits),
            "final": self.final,
            "lost": self.lost,
            "exact": self.exact,
            "errors": len(self.failures),
            "reasons": dict(self.reasons),
            "seconds": round(self.seconds, 6),
            "requests_per_second": round(self.rate, 3),
            "p50_ms": self.latency_ms(50),
            "p99_ms": self.latency_ms(99),
            "overlapping_pairs": self.overlapping_pairs,
            "most_at_once": self.most_at_once,
        }


@dataclass(frozen=True, slots=True)
class DemoResult:
    """A whole run.

    Attributes:
        store: its URL without a password.
        balancer: what spread the requests.
        facts: what it ran on (versions, machine), by name.
        command: what repeats it, for a shell.

    """

    rows: tuple[RowResult, ...]
    requests: int
    services: int
    store: str
    balancer: str
    seconds: float
    facts: Mapping[str, str]
    command: str

    @property
    def passed(self) -> bool:
        """Whether every row with a distributed lock is exact, and no request failed anywhere."""
        locked = [row for row in self.rows if row.guard in (Guard.LEASEHOLD, Guard.REDLOCK)]
        return bool(locked) and all(row.exact for row in locked) and not any(row.failures for row in self.rows)

    def as_json(self) -> dict[str, object]:
        """Return the run for machines."""
        return {
            "passed": self.passed,
            "requests": self.requests,
            "services": self.services,
            "store": self.store,
            "balancer": self.balancer,
            "seconds": round(self.seconds, 3),
            "facts": dict(self.facts),
            "command": self.command,
            "rows": [row.as_json() for row in self.rows],
        }

    def verdict(self) -> str:
        """Say in one or two sentences what one sees."""
        parts = [_said(row) for row in self.rows]
        sentence = "; ".join(parts) + "."
        sentence = sentence[0].upper() + sentence[1:]
        failed = sum(len(row.failures) for row in self.rows)
        if failed:
            sentence += f" {failed} requests failed, so this run proves nothing: see the reasons."
        elif not self.passed:
            sentence += " A lock that loses an update is broken: please report this run."
        elif all(row.exact for row in self.rows):
            sentence += " This time no request met another, so nothing was lost anywhere: try more requests."
        return sentence


def _said(row: RowResult) -> str:
    count = f"{row.lost} of {row.requests} updates were lost" if row.lost else f"all {row.final} updates were counted"
    if not row.lost and not row.exact:
        count = f"{row.final} of {row.requests} updates were counted"
    match row.guard:
        case Guard.NONE:
            return f"without a lock {count}"
        case Guard.THREAD:
            return f"with a thread lock in each process {count}"
        case _:
            return f"with {row.title} {count}"

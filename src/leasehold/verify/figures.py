"""Figures of a run: how fast locks went from hand to hand, how soon losses were told, how soon what died was free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leasehold.testing.history import Hold, Mode
from leasehold.verify.run import Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds: how many were measured, the median, the 99th percentile, the longest."""

    count: int
    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of values; None if there are none."""
        if not values:
            return None
        ordered = sorted(values)
        return cls(len(ordered), ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])

    def __str__(self) -> str:
        median, p99, longest = (_ms(value) for value in (self.median, self.p99, self.longest))
        return f"median {median}, 99 % within {p99}, longest {longest} ({self.count} measured)"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured.

    Attributes:
        hand_over: from the release that its holder sent to the grant that the next waiter saw, of those that no fault
            kept from it.
        told: from the deadline to the moment at which the holder had heard of its loss; time that it stood still and
            losses told before the deadline count as 0.
        recovery: from the kill of a holder to the grant that the next waiter saw.

    """

    acquired: int
    refused: int
    unknown: int
    lost: int
    writes: int
    fenced_off: int
    hand_over: Spread | None
    told: Spread | None
    recovery: Spread | None

    def lines(self) -> dict[str, str]:
        """Return the figures as text, by what they measure."""
        texts = {
            "holds": f"{self.acquired}, of which {self.lost} were lost; {self.refused} refused, {self.unknown} unknown",
            "guarded writes": f"{self.writes}, of which {self.fenced_off} came too late and were fenced off",
        }
        spreads = {"hand-over": self.hand_over, "told of a loss after": self.told, "free after a kill": self.recovery}
        return texts | {name: "none seen" if spread is None else str(spread) for name, spread in spreads.items()}


def measure(outcome: Outcome) -> Figures:
    """Measure a run."""
    history = outcome.history
    granted = [hold for hold in history.holds if hold.granted is not None]
    lost = [hold for hold in granted if hold.told is not None]
    killed = {fault.who: fault.end for fault in outcome.faults if fault.kind == "kill"}
    pairs = list(_successions(granted))
    return Figures(
        acquired=len(granted),
        refused=len(history.tries),
        unknown=len(history.holds) - len(granted),
        lost=len(lost),
        writes=len(history.writes),
        fenced_off=outcome.verdict.fenced_off,
        hand_over=Spread.of([_after(hold, before.until) for before, hold in pairs if _smooth(before, hold, outcome)]),
        told=Spread.of([_late(hold, outcome) for hold in lost]),
        recovery=Spread.of([_after(hold, before.until) for before, hold in pairs if _died(before, killed)]),
    )


def _successions(granted: Sequence[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Yield pairs of exclusive holds of one name, the second of whom waited while the first held."""
    by_name: defaultdict[str, list[Hold]] = defaultdict(list)
    for hold in granted:
        if hold.mode is Mode.EXCLUSIVE:
            by_name[hold.name].append(hold)
    for holds in by_name.values():
        holds.sort(key=lambda hold: hold.granted or 0.0)
        for before, hold in pairwise(holds):
            if hold.queued is not None and hold.queued < before.until:
                yield before, hold


def _smooth(before: Hold, hold: Hold, outcome: Outcome) -> bool:
    """Say whether both, the one who left and the one who came, could run and reach the store meanwhile."""
    pauses = [*outcome.history.stalls, *outcome.history.outages]
    end = hold.granted or 0.0
    return before.freed is not None and not any(
        pause.within(hold.who, before.until, end) or pause.within(before.who, before.until, end) for pause in pauses
    )


def _after(hold: Hold, moment: float) -> float:
    return max(0.0, (hold.granted or 0.0) - moment)


def _died(hold: Hold, killed: Mapping[str, float]) -> bool:
    return killed.get(hold.who.partition(".")[0]) == hold.until


def _late(hold: Hold, outcome: Outcome) -> float:
    told = hold.told or 0.0
    stood = sum(stall.within(hold.who, hold.deadline, told) for stall in outcome.history.stalls)
    return max(0.0, told - hold.deadline - stood)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"

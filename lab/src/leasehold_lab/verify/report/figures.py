"""Figures of a run: how fast locks went from hand to hand, how soon losses were told, how soon what died was free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leasehold_lab.history import Hold, Mode, paused_for
from leasehold_lab.verify.faults.client_faults import SERVERS, Done
from leasehold_lab.verify.run import Outcome

HAND_OVER, TOLD, HEIR, RESUMED, REMOVED, RECOVERY = (
    "hand-over",
    "told of a loss after",
    "told after its next waiter",
    "told after a stop",
    "told of a removal after",
    "free after a kill",
)
"""What is measured, in words; see `Figures`."""


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
        next waiter: of holds that ran out, from the moment at which the next one had the name, to the moment at which
        the
            holder had heard of its loss; 0 where it had heard before, and time that it stood still does not count.
        resumed: from the moment at which a holder that had been stopped beyond its deadline went on, to the moment at
            which it had heard of its loss.
        removed: from the beginning of a fault of the servers that removed a hold, to the moment at which its holder had
            heard of that by the word of the store, before its deadline.
        recovery: from the kill of a holder to the grant that the next waiter saw.
        held_up: seconds for which the machine did not let clients run, of all of them together. It counts against no
            promise of time; on a machine with too much to do, a run shows less.

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
    resumed: Spread | None = None
    removed: Spread | None = None
    next_waiter: Spread | None = None
    held_up: float = 0.0

    def lines(self) -> dict[str, str]:
        """Return the figures as text, by what they measure."""
        texts = {
            "holds": f"{self.acquired}, of which {self.lost} were lost; {self.refused} refused, {self.unknown} unknown",
            "guarded writes": f"{self.writes}, of which {self.fenced_off} came too late and were fenced off",
        }
        spreads = {
            HAND_OVER: self.hand_over,
            TOLD: self.told,
            HEIR: self.next_waiter,
            RESUMED: self.resumed,
            REMOVED: self.removed,
            RECOVERY: self.recovery,
        }
        texts |= {name: "none seen" if spread is None else str(spread) for name, spread in spreads.items()}
        return texts | {"held up by the machine": f"{self.held_up:.1f} s of all clients together"}


def measure(outcome: Outcome) -> Figures:
    """Measure a run."""
    history, spreads = outcome.history, {name: Spread.of(values) for name, values in samples(outcome).items()}
    granted = [hold for hold in history.holds if hold.granted is not None]
    return Figures(
        acquired=len(granted),
        refused=len(history.tries),
        unknown=len(history.holds) - len(granted),
        lost=sum(hold.notified is not None for hold in granted),
        writes=len(history.writes),
        fenced_off=outcome.verdict.fenced_off,
        hand_over=spreads[HAND_OVER],
        told=spreads[TOLD],
        recovery=spreads[RECOVERY],
        resumed=spreads[RESUMED],
        removed=spreads[REMOVED],
        next_waiter=spreads[HEIR],
        held_up=outcome.held_up,
    )


def samples(outcome: Outcome) -> dict[str, list[float]]:
    """Return what was measured, in seconds, by what it is; several runs may be added up."""
    granted = [hold for hold in outcome.history.holds if hold.granted is not None]
    lost = [hold for hold in granted if hold.notified is not None]
    killed = {fault.who: fault.begin for fault in outcome.faults if fault.kind == "kill"}
    neighbours = list(_neighbours(granted))
    pairs = [(before, hold) for before, hold in neighbours if hold.queued is not None and hold.queued < before.until]
    return {
        HAND_OVER: [_after(hold, before.until) for before, hold in pairs if _smooth(before, hold, outcome)],
        TOLD: [_late(hold, outcome) for hold in lost if not _had_left(hold)],
        HEIR: [_late(before, outcome, hold.granted or 0.0) for before, hold in neighbours if _ran_out(before)],
        RESUMED: [after for hold in lost if (after := _since_resumed(hold, outcome)) is not None],
        REMOVED: [after for hold in lost if (after := _since_removed(hold, outcome.faults)) is not None],
        RECOVERY: [_after(hold, before.until) for before, hold in pairs if _died(before, killed)],
    }


def _neighbours(granted: Sequence[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Yield pairs of exclusive holds of one name, of which the second was granted next after the first."""
    by_name: defaultdict[str, list[Hold]] = defaultdict(list)
    for hold in granted:
        if hold.mode is Mode.EXCLUSIVE:
            by_name[hold.name].append(hold)
    for holds in by_name.values():
        yield from pairwise(sorted(holds, key=lambda hold: hold.granted or 0.0))


def _smooth(before: Hold, hold: Hold, outcome: Outcome) -> bool:
    """Say whether both, the one who left and the one who came, could run and reach the store meanwhile."""
    pauses = outcome.history.stalls + outcome.history.outages + outcome.history.short_pauses
    end = hold.granted or 0.0
    return before.freed is not None and not any(
        pause.within(hold.who, before.until, end) or pause.within(before.who, before.until, end) for pause in pauses
    )


def _after(hold: Hold, moment: float) -> float:
    return max(0.0, (hold.granted or 0.0) - moment)


def _died(hold: Hold, killed: Mapping[str, float]) -> bool:
    return killed.get(hold.who.partition(".")[0]) == hold.until


def _ran_out(hold: Hold) -> bool:
    """Say whether it was lost at its deadline: neither had its holder sent a release, nor had the store told it."""
    return hold.notified is not None and hold.until >= hold.deadline


def _had_left(hold: Hold) -> bool:
    """Say whether it had sent its release while it was valid, and heard later that there was nothing to release."""
    return hold.notified is not None and hold.until < min(hold.notified, hold.deadline)


def _late(hold: Hold, outcome: Outcome, after: float | None = None) -> float:
    """Return for how long it could run after that moment (its deadline, if not said), until it was told."""
    told, begin = hold.notified or 0.0, hold.deadline if after is None else after
    pauses = outcome.history.stalls + outcome.history.short_pauses
    return max(0.0, told - begin - paused_for(pauses, hold.who, begin, told))


def _since_resumed(hold: Hold, outcome: Outcome) -> float | None:
    """Return for how long it ran again, when it was told, if its deadline had passed while it was stopped."""
    for stall in outcome.history.stalls:
        if stall.begin <= hold.deadline < stall.end and stall.within(hold.who, stall.begin, stall.end):
            return max(0.0, (hold.notified or 0.0) - stall.end)
    return None


def _since_removed(hold: Hold, faults: Sequence[Done]) -> float | None:
    """Return how long after the last fault of the servers it was told of its loss, if that was before its deadline.

    It counts from the beginning of the fault, so the removal may have come later, and the news sooner after it.
    """
    told = hold.notified or 0.0
    begins = [fault.begin for fault in faults if fault.who == SERVERS and (hold.granted or 0.0) <= fault.begin <= told]
    return told - max(begins) if begins and told < hold.deadline else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"

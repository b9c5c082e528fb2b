"""Figures of a run: the time of hand-overs and of loss notices, and the recovery after kills."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leasehold_lab.history import Hold, Mode, paused_for
from leasehold_lab.verify.faults.client_faults import SERVERS, InjectedFault
from leasehold_lab.verify.run import Outcome

HAND_OVER, LOSS_NOTICE, NEXT_WAITER, RESUMED, REMOVED, RECOVERY = (
    "hand-over",
    "loss notice after deadline",
    "loss notice after next grant",
    "loss notice after a stop",
    "loss notice after removal",
    "free after a kill",
)
"""The names of the measurements; see `Figures`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Measured seconds: their number, the median, the 99th percentile, the longest."""

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
        hand_over: from the holder's release to the grant of the next waiter, where no fault disturbed it.
        loss_notice: from the deadline to the loss notice; time in which the holder was paused does not count, and
            notices before the deadline count as 0.
        next_waiter: of expired holds, from the grant of the next holder to the loss notice; 0 if the notice came first,
            and time in which the old holder was paused does not count.
        resumed: of holders that were stopped when their deadline passed, from the end of the stop to the loss notice.
        removed: from the beginning of a server fault that removed a hold to the loss notice, if a reply of the store
            caused the notice before the deadline.
        recovery: from the kill of a holder to the grant of the next waiter.
        held_up: seconds in which clients got no processor, summed over all clients. No time bound includes them, so a
            run on an overloaded machine shows less.

    """

    acquired: int
    refused: int
    unknown: int
    lost: int
    writes: int
    fenced_off: int
    hand_over: Spread | None
    loss_notice: Spread | None
    recovery: Spread | None
    resumed: Spread | None = None
    removed: Spread | None = None
    next_waiter: Spread | None = None
    held_up: float = 0.0

    def lines(self) -> dict[str, str]:
        """Return the figures as text, by what they measure."""
        texts = {
            "holds": f"{self.acquired}, of which {self.lost} were lost; {self.refused} refused, {self.unknown} unknown",
            "guarded writes": f"{self.writes}, of which {self.fenced_off} were late and were fenced off",
        }
        spreads = {
            HAND_OVER: self.hand_over,
            LOSS_NOTICE: self.loss_notice,
            NEXT_WAITER: self.next_waiter,
            RESUMED: self.resumed,
            REMOVED: self.removed,
            RECOVERY: self.recovery,
        }
        texts |= {name: "none" if spread is None else str(spread) for name, spread in spreads.items()}
        return texts | {"without a processor": f"{self.held_up:.1f} s, all clients together"}


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
        loss_notice=spreads[LOSS_NOTICE],
        recovery=spreads[RECOVERY],
        resumed=spreads[RESUMED],
        removed=spreads[REMOVED],
        next_waiter=spreads[NEXT_WAITER],
        held_up=outcome.held_up,
    )


def samples(outcome: Outcome) -> dict[str, list[float]]:
    """Return the measured seconds by name, so that several runs can be merged."""
    granted = [hold for hold in outcome.history.holds if hold.granted is not None]
    lost = [hold for hold in granted if hold.notified is not None]
    killed = {fault.who: fault.begin for fault in outcome.faults if fault.kind == "kill"}
    neighbours = list(_neighbours(granted))
    pairs = [(before, hold) for before, hold in neighbours if hold.queued is not None and hold.queued < before.until]
    return {
        HAND_OVER: [_after(hold, before.until) for before, hold in pairs if _smooth(before, hold, outcome)],
        LOSS_NOTICE: [_late(hold, outcome) for hold in lost if not _was_released(hold)],
        NEXT_WAITER: [_late(before, outcome, hold.granted or 0.0) for before, hold in neighbours if _ran_out(before)],
        RESUMED: [after for hold in lost if (after := _since_resumed(hold, outcome)) is not None],
        REMOVED: [after for hold in lost if (after := _since_removed(hold, outcome.faults)) is not None],
        RECOVERY: [_after(hold, before.until) for before, hold in pairs if _died(before, killed)],
    }


def _neighbours(granted: Sequence[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Yield pairs of successive exclusive holds of one name."""
    by_name: defaultdict[str, list[Hold]] = defaultdict(list)
    for hold in granted:
        if hold.mode is Mode.EXCLUSIVE:
            by_name[hold.name].append(hold)
    for holds in by_name.values():
        yield from pairwise(sorted(holds, key=lambda hold: hold.granted or 0.0))


def _smooth(before: Hold, hold: Hold, outcome: Outcome) -> bool:
    """Return whether both holders could run and reach the store during the hand-over."""
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
    """Return whether it was lost at its deadline: its holder sent no release, and the store reported no loss."""
    return hold.notified is not None and hold.until >= hold.deadline


def _was_released(hold: Hold) -> bool:
    """Return whether its holder sent a release while it was valid, and the store had nothing to release."""
    return hold.notified is not None and hold.until < min(hold.notified, hold.deadline)


def _late(hold: Hold, outcome: Outcome, after: float | None = None) -> float:
    """Return for how many seconds its holder could run between ``after`` (default: the deadline) and the notice."""
    notified, begin = hold.notified or 0.0, hold.deadline if after is None else after
    pauses = outcome.history.stalls + outcome.history.short_pauses
    return max(0.0, notified - begin - paused_for(pauses, hold.who, begin, notified))


def _since_resumed(hold: Hold, outcome: Outcome) -> float | None:
    """Return the seconds from the end of a stop to the notice, if the deadline passed during the stop."""
    for stall in outcome.history.stalls:
        if stall.begin <= hold.deadline < stall.end and stall.within(hold.who, stall.begin, stall.end):
            return max(0.0, (hold.notified or 0.0) - stall.end)
    return None


def _since_removed(hold: Hold, faults: Sequence[InjectedFault]) -> float | None:
    """Return the seconds from the last server fault to the notice, if the notice came before the deadline.

    They count from the beginning of the fault. The removal may have come later, so the notice may have been faster.
    """
    end, granted = hold.notified or 0.0, hold.granted or 0.0
    begins = [fault.begin for fault in faults if fault.who == SERVERS and granted <= fault.begin <= end]
    return end - max(begins) if begins and end < hold.deadline else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"

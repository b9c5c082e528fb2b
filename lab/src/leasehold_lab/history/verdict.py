"""From a history to a verdict: each promise kept, or the smallest set of operations that shows that it was not."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from leasehold_lab.history.exclusion import broken_nesting, overlaps, refused_while_free
from leasehold_lab.history.fencing import (
    refused_in_time,
    repeated_tokens,
    stale_writes,
    tokens_against_claims,
    tokens_against_time,
)
from leasehold_lab.history.operations import History, Hold, Mode, Try, Write
from leasehold_lab.history.telling import (
    believed_too_long,
    kept_for_nobody,
    lost_needlessly,
    silent_losses,
    told_late,
    unnoticed,
)
from leasehold_lab.history.turns import ghosts, inversions, late_wakes, passing


class Promise(enum.StrEnum):
    """What is checked. The order is that of a report: the gravest first."""

    FENCED = "a guarded write of an older holder never follows a newer one's"
    TOKENS = "tokens increase from grant to grant"
    EXCLUSION = "claims that exclude each other never overlap"
    TOLD = "a holder that lost its hold is told in time, and never told the opposite"
    KEPT = "a holder that can run and reach the store keeps what is renewed"
    NESTING = "what is acquired again is held once, with one token"
    WOKEN = "a waiter is woken in time"
    TURNS = "a fair lock serves in order of arrival"
    FREE = "a free name is given to who asks"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as late, in seconds, and which order of tokens the store promises.

    Attributes:
        told: after the deadline, until the holder has heard of it.
        woken: after the name was free, until the next waiter has it.
        linearizable: claims and tokens have the same order; else tokens increase in real time only (Redlock).
        tries: whether a try may not be refused while the name is free.
        turns: whether fair locks must serve in order (a waiter cut off for longer than its lease loses its place).
        keeps_place: seconds for which a waiter may have been cut off, or have stood still, without losing its place.
        passed_over: whether a fair waiter that is cut off when its turn comes may be passed over, without losing its
            place: by one that hears of its grant within so many seconds. None if it may not.
        keeps_hold: seconds in which a holder that can run and reach the store renews its hold for sure.
        noticed: after the store lost a hold, until its holder has heard of it, by a renewal.
        gives_up: after nobody can release a hold any more, until its client gives it up, and whoever listens is told.

    """

    told: float = 0.05
    woken: float = math.inf
    linearizable: bool = True
    tries: bool = True
    turns: bool = True
    keeps_place: float = 0.0
    passed_over: float | None = None
    keeps_hold: float = math.inf
    noticed: float = math.inf
    gives_up: float = math.inf


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken.

    Attributes:
        operations: as few as show it, in order of time.
        what: what they show, in words.

    """

    promise: Promise
    operations: tuple[Hold | Try | Write, ...]
    what: str

    def __str__(self) -> str:
        return "\n".join([f"broken: {self.promise.value}: {self.what}", *(f"    {one}" for one in self.operations)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a history shows.

    Attributes:
        checked: how many operations were looked at.
        fenced_off: writes of older holders that the guarded resource refused, as it should.

    """

    violations: tuple[Violation, ...]
    checked: int
    fenced_off: int = 0
    by_promise: dict[Promise, int] = field(default_factory=dict[Promise, int])

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def report(self) -> str:
        """Return the verdict as text: one line if all is well, else each violation with its operations."""
        if self.ok:
            return f"{self.checked} operations, every promise kept"
        return "\n".join([f"{self.checked} operations, {len(self.violations)} violations", *map(str, self.violations)])


def check(history: History, bounds: Bounds = Bounds()) -> Verdict:
    """Check a history against every promise. Takes O(n log n)."""
    by_name: defaultdict[str, list[Hold]] = defaultdict(list)
    for hold in history.holds:
        by_name[hold.name].append(hold)
    found = [*_written(history, bounds), *_told(history, bounds)]
    for name, holds in by_name.items():
        found += _of_name(holds, [attempt for attempt in history.tries if attempt.name == name], history, bounds)
    found.sort(key=lambda violation: list(Promise).index(violation.promise))
    counts = {promise: sum(one.promise is promise for one in found) for promise in Promise}
    refused = sum(not write.accepted for write in history.writes)
    operations = 2 * len(history.holds) + len(history.tries) + len(history.writes)
    return Verdict(tuple(found), operations, refused, counts)


def _of_name(holds: list[Hold], tries: list[Try], history: History, bounds: Bounds) -> Iterator[Violation]:
    for pair in repeated_tokens(holds):
        yield Violation(Promise.TOKENS, pair, "two grants carry one token")
    for pair in tokens_against_time(holds):
        yield Violation(Promise.TOKENS, pair[::-1], "asked for when the other was had, with a smaller token")
    for together in overlaps(holds):
        yield Violation(Promise.EXCLUSION, together, _when(together))
    for nest in broken_nesting(holds):
        yield Violation(Promise.NESTING, nest, "it was not inside a hold of its owner with the same token")
    if all(hold.mode is Mode.EXCLUSIVE for hold in holds):
        yield from _exclusive(holds, tries, history, bounds)
    if bounds.turns:
        pauses = history.stalls + history.outages
        for pair in inversions(holds, pauses, bounds.keeps_place, bounds.passed_over).pairs:
            yield Violation(Promise.TURNS, pair, "the first was in line before the second asked")


def _exclusive(holds: list[Hold], tries: list[Try], history: History, bounds: Bounds) -> Iterator[Violation]:
    if bounds.linearizable:
        for pair in tokens_against_claims(holds):
            yield Violation(Promise.TOKENS, pair, "the later claim has the smaller token")
    pauses = history.stalls + history.outages
    if bounds.tries:
        perhaps = [*holds, *ghosts([*holds, *tries], pauses), *passing(tries)]
        for attempt, alongside in refused_while_free(perhaps, tries):
            yield Violation(Promise.FREE, (*alongside, attempt), "refused though nobody can have held the name")
    for before, waiter, gap in late_wakes(holds, tries, bounds.woken, pauses, history.moments + history.lulls):
        yield Violation(Promise.WOKEN, (before, waiter), f"nobody held the name for {gap:.3f} s beside a waiter")


def _written(history: History, bounds: Bounds) -> Iterator[Violation]:
    if bounds.linearizable:
        for hold, refused in refused_in_time(history.holds, history.writes):
            yield Violation(Promise.EXCLUSION, (hold, refused), "a newer holder wrote during this claim")
    by_resource: defaultdict[str, list[Write]] = defaultdict(list)
    for write in history.writes:
        by_resource[write.resource].append(write)
    for one in by_resource.values():
        for pair in stale_writes(one):
            yield Violation(Promise.FENCED, pair, "the older token was applied after the newer one")


def _told(history: History, bounds: Bounds) -> Iterator[Violation]:
    for hold in silent_losses(history.holds):
        yield Violation(Promise.TOLD, (hold,), f"a check said yes at {hold.checked}, after the hold was lost")
    for hold, late in told_late(history.holds, bounds.told, history.stalls + history.moments):
        yield Violation(Promise.TOLD, (hold,), f"it was told {late:.3f} s after the deadline")
    for hold, seconds in believed_too_long(history.holds):
        yield Violation(Promise.EXCLUSION, (hold,), f"believed in for {seconds:.3f} s from the last that was sent")
    pauses = history.stalls + history.outages
    for hold, believed in unnoticed(history.holds, history.removals, bounds.noticed, pauses):
        yield Violation(Promise.TOLD, (hold,), f"it was believed in for {believed:.3f} s after the store had lost it")
    for hold, seconds in kept_for_nobody(history.holds, bounds.gives_up, pauses):
        yield Violation(Promise.FREE, (hold,), f"it was dropped at {hold.dropped}, and kept for {seconds:.3f} s more")
    if bounds.keeps_hold < math.inf:
        for hold in lost_needlessly(history.holds, bounds.keeps_hold, pauses):
            yield Violation(
                Promise.KEPT, (hold,), f"lost, though nothing kept it from {bounds.keeps_hold} s of renewals"
            )


def _when(together: tuple[Hold, ...]) -> str:
    begin = max(hold.granted or 0.0 for hold in together)
    end = min(hold.until for hold in together)
    return f"{len(together)} claims at once, from {begin:.4f} to {end:.4f}"

"""Checks a history against every promise; shows each violation by the smallest set of operations."""

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
from leasehold_lab.history.loss_notices import (
    late_give_ups,
    late_notices,
    needless_losses,
    overlong_deadlines,
    silent_losses,
    unnoticed_losses,
)
from leasehold_lab.history.operations import History, Hold, Mode, Try, Write
from leasehold_lab.history.waiting import inversions, late_wake_ups, possible_grants, possible_grants_of_tries


class Promise(enum.StrEnum):
    """What is checked. The order is that of a report: the gravest first."""

    FENCING = "a guarded resource never applies a write of an older holder after one of a newer holder"
    TOKENS = "tokens increase from grant to grant"
    EXCLUSION = "claims that exclude each other never overlap"
    LOSS_NOTICE = "a holder that lost its hold is notified in time, and no check succeeds after that"
    RENEWAL = "a holder that can run and reach the store keeps a renewed hold"
    NESTING = "a lock acquired again by its holder is held once, with one token"
    WAKE_UP = "a waiter is woken in time"
    FIFO = "a fair lock serves in order of arrival"
    AVAILABILITY = "a free name is granted on request"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as late, in seconds, and which order of tokens the store promises.

    Attributes:
        notified: from the deadline until the holder is notified.
        wake_up: from the moment at which the name is free until the next waiter has it.
        linearizable: claims and tokens have the same order; else tokens increase in real time only (Redlock).
        tries: whether a try must succeed while the name is free.
        fifo: whether fair locks must serve in order (a waiter cut off for longer than its lease loses its entry).
        keeps_entry: seconds for which a waiter may be cut off or paused without losing its queue entry.
        passed_over: seconds within which another waiter receives its grant, if a fair waiter that is cut off may be
            passed over without losing its queue entry. None if it may not.
        keeps_hold: seconds in which a holder that can run and reach the store surely renews its hold.
        noticed: from the moment at which the store lost a hold until a renewal has notified its holder.
        gives_up: from the moment at which nothing can release a hold any more until its client gives it up, and
            notifies the callbacks.

    """

    notified: float = 0.05
    wake_up: float = math.inf
    linearizable: bool = True
    tries: bool = True
    fifo: bool = True
    keeps_entry: float = 0.0
    passed_over: float | None = None
    keeps_hold: float = math.inf
    noticed: float = math.inf
    gives_up: float = math.inf


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken.

    Attributes:
        operations: as few as show it, in order of time.
        what: what they show, as text.

    """

    promise: Promise
    operations: tuple[Hold | Try | Write, ...]
    what: str

    def __str__(self) -> str:
        return "\n".join([f"broken: {self.promise.value}: {self.what}", *(f"    {one}" for one in self.operations)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Attributes:
        checked: the number of operations.
        fenced_off: writes of older holders that the guarded resource refused, as it must.

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
        """Return the verdict as text: one line if there is no violation, else each violation with its operations."""
        if self.ok:
            return f"{self.checked} operations, every promise kept"
        return "\n".join([f"{self.checked} operations, {len(self.violations)} violations", *map(str, self.violations)])


def check(history: History, bounds: Bounds = Bounds()) -> Verdict:
    """Check a history against every promise. Takes O(n log n)."""
    by_name: defaultdict[str, list[Hold]] = defaultdict(list)
    for hold in history.holds:
        by_name[hold.name].append(hold)
    found = [*_check_writes(history, bounds), *_check_notices(history, bounds)]
    for name, holds in by_name.items():
        found += _check_name(holds, [attempt for attempt in history.tries if attempt.name == name], history, bounds)
    found.sort(key=lambda violation: list(Promise).index(violation.promise))
    counts = {promise: sum(one.promise is promise for one in found) for promise in Promise}
    refused = sum(not write.accepted for write in history.writes)
    operations = 2 * len(history.holds) + len(history.tries) + len(history.writes)
    return Verdict(tuple(found), operations, refused, counts)


def _check_name(holds: list[Hold], tries: list[Try], history: History, bounds: Bounds) -> Iterator[Violation]:
    for pair in repeated_tokens(holds):
        yield Violation(Promise.TOKENS, pair, "two grants carry one token")
    for pair in tokens_against_time(holds):
        yield Violation(Promise.TOKENS, pair[::-1], "requested after the other was granted, with a smaller token")
    for together in overlaps(holds):
        yield Violation(Promise.EXCLUSION, together, _describe(together))
    for nest in broken_nesting(holds):
        yield Violation(Promise.NESTING, nest, "it was not inside a hold of its owner with the same token")
    if all(hold.mode is Mode.EXCLUSIVE for hold in holds):
        yield from _check_exclusive(holds, tries, history, bounds)
    if bounds.fifo:
        pauses = history.stalls + history.outages
        for pair in inversions(holds, pauses, bounds.keeps_entry, bounds.passed_over).pairs:
            yield Violation(Promise.FIFO, pair, "the first had its queue entry before the second sent its request")


def _check_exclusive(holds: list[Hold], tries: list[Try], history: History, bounds: Bounds) -> Iterator[Violation]:
    if bounds.linearizable:
        for pair in tokens_against_claims(holds):
            yield Violation(Promise.TOKENS, pair, "the later claim has the smaller token")
    pauses = history.stalls + history.outages
    if bounds.tries:
        perhaps = [*holds, *possible_grants([*holds, *tries], pauses), *possible_grants_of_tries(tries)]
        for attempt, neighbours in refused_while_free(perhaps, tries):
            why = "refused although no client can have held the name"
            yield Violation(Promise.AVAILABILITY, (*neighbours, attempt), why)
    short = history.short_pauses + history.relay_pauses
    for before, waiter, gap in late_wake_ups(holds, tries, bounds.wake_up, pauses, short):
        why = f"no client held the name for {gap:.3f} s while a waiter was queued"
        yield Violation(Promise.WAKE_UP, (before, waiter), why)


def _check_writes(history: History, bounds: Bounds) -> Iterator[Violation]:
    if bounds.linearizable:
        for hold, refused in refused_in_time(history.holds, history.writes):
            yield Violation(Promise.EXCLUSION, (hold, refused), "a newer holder wrote during this claim")
    by_resource: defaultdict[str, list[Write]] = defaultdict(list)
    for write in history.writes:
        by_resource[write.resource].append(write)
    for one in by_resource.values():
        for pair in stale_writes(one):
            yield Violation(Promise.FENCING, pair, "the older token was applied after the newer one")


def _check_notices(history: History, bounds: Bounds) -> Iterator[Violation]:
    for hold in silent_losses(history.holds):
        yield Violation(Promise.LOSS_NOTICE, (hold,), f"a check succeeded at {hold.checked}, after the hold was lost")
    for hold, late in late_notices(history.holds, bounds.notified, history.stalls + history.short_pauses):
        yield Violation(Promise.LOSS_NOTICE, (hold,), f"its holder was notified {late:.3f} s after the deadline")
    for hold, seconds in overlong_deadlines(history.holds):
        why = f"its deadline was {seconds:.3f} s after the last request of its client"
        yield Violation(Promise.EXCLUSION, (hold,), why)
    pauses = history.stalls + history.outages
    for hold, seconds in unnoticed_losses(history.holds, history.removals, bounds.noticed, pauses):
        why = f"its holder had no notice for {seconds:.3f} s after the store had lost it"
        yield Violation(Promise.LOSS_NOTICE, (hold,), why)
    for hold, seconds in late_give_ups(history.holds, bounds.gives_up, pauses):
        why = f"it was dropped at {hold.dropped}, and kept for another {seconds:.3f} s"
        yield Violation(Promise.AVAILABILITY, (hold,), why)
    if bounds.keeps_hold < math.inf:
        for hold in needless_losses(history.holds, bounds.keeps_hold, pauses):
            why = f"lost, although its client could renew it for {bounds.keeps_hold} s"
            yield Violation(Promise.RENEWAL, (hold,), why)


def _describe(together: tuple[Hold, ...]) -> str:
    begin = max(hold.granted or 0.0 for hold in together)
    end = min(hold.until for hold in together)
    return f"{len(together)} claims at once, from {begin:.4f} to {end:.4f}"

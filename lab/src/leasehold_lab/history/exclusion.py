"""Finds holds that overlap although they exclude each other, and tries that were refused while the name was free.

The *core* of a hold is its claim [granted, until]. The store may have granted earlier and given up later, so every
span in which it can have held contains the core. Choosing the core itself can only remove overlaps. So a correct lock
can have answered like this **if and only if** no two cores overlap: sort, and compare neighbours. The same is true
for readers and writers, and for permits: sweep the cores, and count.

An acquire that was never answered may be assumed not to have happened, so it constrains nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from leasehold_lab.history.operations import Hold, Mode, Try


def overlaps(holds: Iterable[Hold]) -> Iterator[tuple[Hold, ...]]:
    """Yield, for one name, each smallest set of holds that cannot all have been valid at the same time.

    Claims are half open: one that begins when another ends does not overlap it. Takes O(n log n).
    """
    active: list[tuple[float, int, Hold]] = []  # a heap by the end of the claim
    shared = taken = alone = 0
    for number, hold in enumerate(sorted(_outermost(holds), key=_begin)):
        begin = _begin(hold)
        while active and active[0][0] <= begin:
            gone = heapq.heappop(active)[2]
            alone -= gone.mode is Mode.EXCLUSIVE
            shared -= gone.mode is Mode.SHARED
            taken -= gone.permits if gone.mode is Mode.PERMITS else 0
        if active and (alone or hold.mode is Mode.EXCLUSIVE or not _fits(hold, shared, taken)):
            yield _smallest(hold, [other for _, _, other in active])
        heapq.heappush(active, (hold.until, number, hold))
        alone += hold.mode is Mode.EXCLUSIVE
        shared += hold.mode is Mode.SHARED
        taken += hold.permits if hold.mode is Mode.PERMITS else 0


def _fits(hold: Hold, shared: int, taken: int) -> bool:
    """Return whether the hold may coexist with that many readers and permits."""
    if hold.mode is Mode.SHARED:
        return not taken
    return not shared and taken + hold.permits <= hold.limit


def _smallest(hold: Hold, others: Sequence[Hold]) -> tuple[Hold, ...]:
    """Choose as few of the others as are needed to show a conflict with this hold."""
    for other in others:
        if other.mode is not hold.mode or hold.mode is Mode.EXCLUSIVE:
            return other, hold
    chosen, taken = list[Hold](), hold.permits
    for other in sorted(others, key=lambda other: -other.permits):
        chosen.append(other)
        taken += other.permits
        if taken > hold.limit:
            break
    return *chosen, hold


def refused_while_free(holds: Iterable[Hold], tries: Iterable[Try]) -> Iterator[tuple[Try, tuple[Hold, ...]]]:
    """Yield the tries for one exclusive name whose whole window lies in a time in which no client can have held it.

    Each comes with the hold before that time and the hold after it, if there are such. An acquire that was never
    answered excuses every try after it. There this check is not exact, but it never raises a false alarm.
    """
    spans = sorted(_spans(holds), key=lambda span: span[0])
    ends = list[float]()  # the latest end of any span up to this one
    last = list[Hold]()
    for _, end, hold in spans:
        later = not ends or end > ends[-1]
        ends.append(end if later else ends[-1])
        last.append(hold if later else last[-1])
    starts = [start for start, _, _ in spans]
    for attempt in tries:
        after = bisect_right(starts, attempt.answered)  # a request sent during the try may have been served first
        if not after or ends[after - 1] < attempt.asked:
            before = (last[after - 1],) if after else ()
            yield attempt, (*before, *(hold for _, _, hold in spans[after : after + 1]))


def _spans(holds: Iterable[Hold]) -> Iterator[tuple[float, float, Hold]]:
    """Yield the longest time for which the store may have kept each hold, as far as its neighbours allow."""
    known = list[Hold]()
    for hold in holds:
        if hold.granted is None:
            yield hold.asked, hold.free_by, hold
        elif not hold.nested:
            known.append(hold)
    known.sort(key=_begin)
    for before, hold, after in zip([None, *known], known, [*known[1:], None], strict=False):
        start = hold.asked if before is None else max(hold.asked, before.until)
        yield start, hold.free_by if after is None else min(hold.free_by, _begin(after)), hold


def _outermost(holds: Iterable[Hold]) -> Iterator[Hold]:
    return (hold for hold in holds if hold.granted is not None and not hold.nested and hold.until > hold.granted)


def _begin(hold: Hold) -> float:
    assert hold.granted is not None
    return hold.granted


def broken_nesting(holds: Iterable[Hold]) -> Iterator[tuple[Hold, ...]]:
    """Yield the nested holds whose owner did not hold the name, or whose token differs from the outermost hold's."""
    outer: dict[str, Hold] = {}
    for hold in sorted((hold for hold in holds if hold.granted is not None), key=_begin):
        if not hold.nested:
            outer[hold.who] = hold
        elif hold.who not in outer:
            yield (hold,)
        elif hold.until > outer[hold.who].until or hold.token != outer[hold.who].token:
            yield outer[hold.who], hold

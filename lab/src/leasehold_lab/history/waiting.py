"""Checks that fair locks served waiters in order of arrival, and that waiters were woken in time.

One waiter certainly came first only if it had its queue entry (`Hold.queued`) before the other sent its request. All
other waiters are concurrent, and any order of them is right.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leasehold_lab.history.operations import Hold, Stall, Try, paused_for


@dataclass(frozen=True, slots=True)
class Inversions:
    """How often a waiter was overtaken.

    Attributes:
        count: pairs of waiters served in the wrong order.
        pairs: for each waiter that overtook, itself and one that it overtook.

    """

    count: int
    pairs: tuple[tuple[Hold, Hold], ...]


def inversions(
    holds: Sequence[Hold], pauses: Sequence[Stall] = (), keeps: float = 0.0, passed_over: float | None = None
) -> Inversions:
    """Count, for one fair name, the pairs of waiters served in the wrong order.

    Takes O(n log n), by a Fenwick tree. A waiter that was paused or cut off for more than ``keeps`` seconds while it
    waited may have lost its queue entry, and is left out. With ``passed_over``, so is a waiter that was cut off while
    another was granted the name. The other may have received its grant that many seconds later.
    """
    waited = [hold for hold in holds if hold.fair and hold.token is not None and _kept_its_entry(hold, pauses, keeps)]
    if passed_over is not None:
        grants = sorted(hold.granted for hold in holds if hold.granted is not None)
        waited = [hold for hold in waited if not _passed_over(hold, pauses, grants, passed_over)]
    by_token = {hold.token: rank for rank, hold in enumerate(sorted(waited, key=lambda hold: hold.token or 0), 1)}
    placed = sorted((hold for hold in waited if hold.queued is not None), key=lambda hold: hold.queued or 0.0)
    tree, count, pairs = [0] * (len(waited) + 1), 0, list[tuple[Hold, Hold]]()
    last: Hold | None = None  # the one with the highest token among those that had a queue entry
    seen = 0
    for hold in sorted(waited, key=lambda hold: hold.asked):
        while seen < len(placed) and (placed[seen].queued or 0.0) < hold.asked:
            ahead = placed[seen]
            _add(tree, by_token[ahead.token])
            last = ahead if last is None or (ahead.token or 0) > (last.token or 0) else last
            seen += 1
        overtaken = seen - _sum(tree, by_token[hold.token])
        if overtaken and last is not None:
            count += overtaken
            pairs.append((last, hold))
    return Inversions(count, tuple(pairs))


def _kept_its_entry(hold: Hold, pauses: Sequence[Stall], keeps: float) -> bool:
    if hold.granted is None:
        return False
    return paused_for(pauses, hold.who, hold.asked, hold.granted) <= keeps


def _passed_over(hold: Hold, pauses: Sequence[Stall], grants: Sequence[float], late: float) -> bool:
    """Return whether another may have been granted the name while this waiter was cut off."""
    for pause in pauses:
        if hold.granted is not None and pause.within(hold.who, hold.asked, hold.granted):
            begin, end = max(pause.begin, hold.asked), min(pause.end + late, hold.granted)
            if bisect_left(grants, end) > bisect_left(grants, begin):
                return True
    return False


def _add(tree: list[int], place: int) -> None:
    while place < len(tree):
        tree[place] += 1
        place += place & -place


def _sum(tree: Sequence[int], place: int) -> int:
    total = 0
    while place:
        total += tree[place]
        place -= place & -place
    return total


def late_wake_ups(
    holds: Sequence[Hold],
    tries: Sequence[Try],
    bound: float,
    pauses: Sequence[Stall] = (),
    short_pauses: Sequence[Stall] = (),
) -> Iterator[tuple[Hold, Hold | Try, float]]:
    """Yield, for one exclusive name, a hold, a waiter behind it, and the seconds in which no client had a claim.

    Yields each gap once, if it lasted for more than ``bound`` seconds while that waiter had its queue entry. It does
    not matter to whom the store had given the name: that client could run, and was not notified. Two kinds of time do
    not count: time in which the waiter was paused or cut off (``pauses``, and ``short_pauses``, which are too short to
    lose a queue entry), and time in which another client may have held that received no answer, or that could not give
    up its grant.
    """
    perhaps = [hold for hold in [*holds, *possible_grants([*holds, *tries], pauses)] if not hold.nested]
    gaps = list(_gaps(perhaps, bound))
    starts = [gap.begin for gap in gaps]
    waiters: list[tuple[float, float, Hold | Try]] = [
        (one.queued, one.granted, one) for one in holds if one.queued is not None and one.granted is not None
    ]
    waiters += [(one.queued, one.answered, one) for one in tries if one.queued is not None]
    reported = set[int]()
    for queued, end, waiter in sorted(waiters, key=lambda waiter: waiter[0]):
        for number in range(max(0, bisect_right(starts, queued) - 1), bisect_right(starts, end)):
            gap = gaps[number]
            begin, until = max(gap.begin, queued), min(gap.end, end)
            waited = until - begin
            if waited > bound:
                waited -= paused_for([*pauses, *short_pauses], waiter.who, begin, until)
            if waited > bound and number not in reported:
                reported.add(number)
                yield gap.before, waiter, waited


@dataclass(frozen=True, slots=True)
class _Gap:
    """A time in which no client can have held, and the hold before it."""

    begin: float
    end: float
    before: Hold


def _gaps(perhaps: Iterable[Hold], bound: float) -> Iterator[_Gap]:
    """Yield the times of more than ``bound`` seconds in which no client can have held; the last one has no end."""
    before: Hold | None = None
    for hold in sorted(perhaps, key=_earliest_start):
        start = _earliest_start(hold)
        if before is not None and start - before.free_by > bound:
            yield _Gap(before.free_by, start, before)
        if before is None or hold.free_by > before.free_by:
            before = hold
    if before is not None:
        yield _Gap(before.free_by, math.inf, before)


def possible_grants(waiters: Iterable[Hold | Try], pauses: Sequence[Stall] = ()) -> Iterator[Hold]:
    """Yield, as unanswered acquires, what the store may have granted to waiters that did not receive the grant.

    There are two cases. In both, the waiter was paused or cut off while it waited:

    - It had a queue entry. The store may have granted it the name and kept the grant for a lease, even if it was
      granted the name again later, or gave up. If the pause began before the waiter knew of its queue entry, the grant
      may date from its request.
    - It was never queued. The grant may date from its request, and the answer may have waited for the end of the pause.
    """
    for one in waiters:
        end = one.answered if isinstance(one, Try) else one.granted
        if end is None:
            continue
        during = [pause for pause in pauses if pause.within(one.who, one.asked, end)]
        if during and one.queued is not None:
            begin = one.asked if any(pause.begin < one.queued for pause in during) else one.queued
            until = max(min(pause.end, end) for pause in during) + one.lease
            yield Hold(one.who, one.name, begin, until=until, lease=0.0)
        elif during and isinstance(one, Hold) and not one.nested:
            yield Hold(one.who, one.name, one.asked, until=end, lease=0.0)


def possible_grants_of_tries(tries: Iterable[Try]) -> Iterator[Hold]:
    """Yield, as unanswered acquires, the tries that had a queue entry: each may have been granted at its end."""
    for one in tries:
        if one.queued is not None:
            yield Hold(one.who, one.name, one.queued, until=one.answered, lease=0.0)


def _earliest_start(hold: Hold) -> float:
    return hold.asked if hold.granted is None else hold.granted

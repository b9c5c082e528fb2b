"""Whether waiters were served in the order in which they came, and woken in time.

Who came first is known only where one had its place (`Hold.queued`) before the other asked; all else is concurrent,
and any order is right.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leasehold_lab.history.operations import Hold, Stall, Try, stood_still


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
    """Count, for one fair name, the pairs of which the later came first. Takes O(n log n), by a Fenwick tree.

    A waiter that stood still or was cut off for more than ``keeps`` seconds while it waited may have lost its place,
    and is left out. So is, with ``passed_over``, one that was cut off when somebody was granted the name, who has
    heard of it within so many seconds.
    """
    waited = [hold for hold in holds if hold.fair and hold.token is not None and _kept_its_place(hold, pauses, keeps)]
    if passed_over is not None:
        grants = sorted(hold.granted for hold in holds if hold.granted is not None)
        waited = [hold for hold in waited if not _missed_its_turn(hold, pauses, grants, passed_over)]
    by_token = {hold.token: rank for rank, hold in enumerate(sorted(waited, key=lambda hold: hold.token or 0), 1)}
    placed = sorted((hold for hold in waited if hold.queued is not None), key=lambda hold: hold.queued or 0.0)
    tree, count, pairs = [0] * (len(waited) + 1), 0, list[tuple[Hold, Hold]]()
    last: Hold | None = None  # the one with the highest token among those that had their place
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


def _kept_its_place(hold: Hold, pauses: Sequence[Stall], keeps: float) -> bool:
    if hold.granted is None:
        return False
    return stood_still(pauses, hold.who, hold.asked, hold.granted) <= keeps


def _missed_its_turn(hold: Hold, pauses: Sequence[Stall], grants: Sequence[float], late: float) -> bool:
    """Return whether somebody may have been granted the name while this one waited and was cut off."""
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


def late_wakes(
    holds: Sequence[Hold],
    tries: Sequence[Try],
    bound: float,
    pauses: Sequence[Stall] = (),
    moments: Sequence[Stall] = (),
) -> Iterator[tuple[Hold, Hold | Try, float]]:
    """Yield, for one exclusive name, a hold, a waiter behind it, and the seconds for which nobody claimed the name.

    Only what lasted for more than ``bound`` seconds while that waiter had its place is yielded, once for each time.
    To whom the store had given the name does not matter: whoever it was could run, and was not told. Time in which the
    waiter stood still or was cut off does not count (``pauses``, and ``moments`` that are too short to lose a place
    by), nor time in which one may have held that was never answered, or that could not give up what it was granted.
    """
    perhaps = [hold for hold in [*holds, *ghosts([*holds, *tries], pauses)] if not hold.nested]
    gaps = list(_gaps(perhaps, bound))
    starts = [gap.begin for gap in gaps]
    waiters: list[tuple[float, float, Hold | Try]] = [
        (one.queued, one.granted, one) for one in holds if one.queued is not None and one.granted is not None
    ]
    waiters += [(one.queued, one.answered, one) for one in tries if one.queued is not None]
    told = set[int]()
    for queued, end, waiter in sorted(waiters, key=lambda waiter: waiter[0]):
        for number in range(max(0, bisect_right(starts, queued) - 1), bisect_right(starts, end)):
            gap = gaps[number]
            begin, until = max(gap.begin, queued), min(gap.end, end)
            waited = until - begin
            if waited > bound:
                waited -= stood_still([*pauses, *moments], waiter.who, begin, until)
            if waited > bound and number not in told:
                told.add(number)
                yield gap.before, waiter, waited


@dataclass(frozen=True, slots=True)
class _Gap:
    """A time in which nobody can have held, and who held before."""

    begin: float
    end: float
    before: Hold


def _gaps(perhaps: Iterable[Hold], bound: float) -> Iterator[_Gap]:
    """Yield the times of more than ``bound`` seconds in which nobody can have held, but for that after the last."""
    before: Hold | None = None
    for hold in sorted(perhaps, key=_when_it_may_hold):
        start = _when_it_may_hold(hold)
        if before is not None and start - before.free_by > bound:
            yield _Gap(before.free_by, start, before)
        if before is None or hold.free_by > before.free_by:
            before = hold


def ghosts(waiters: Iterable[Hold | Try], pauses: Sequence[Stall] = ()) -> Iterator[Hold]:
    """Yield, as acquires that were never answered, what the store may have granted to waiters that did not hear of it.

    They had their place, and stood still or were cut off while they waited: it may have become theirs, and have been
    kept for a lease, even if they were granted it again later, or gave up. If they were so before they heard that they
    have a place, they may have had it since they asked. Or they never were told to wait, and stood still or were cut
    off when the answer came: it may have been theirs since they asked.
    """
    for one in waiters:
        end = one.answered if isinstance(one, Try) else one.granted
        if end is None:
            continue
        struck = [pause for pause in pauses if pause.within(one.who, one.asked, end)]
        if struck and one.queued is not None:
            begin = one.asked if any(pause.begin < one.queued for pause in struck) else one.queued
            until = max(min(pause.end, end) for pause in struck) + one.lease
            yield Hold(one.who, one.name, begin, until=until, lease=0.0)
        elif struck and isinstance(one, Hold) and not one.nested:
            yield Hold(one.who, one.name, one.asked, until=end, lease=0.0)


def passing(tries: Iterable[Try]) -> Iterator[Hold]:
    """Yield, as acquires that were never answered, all tries that had their place: each may have been granted last."""
    for one in tries:
        if one.queued is not None:
            yield Hold(one.who, one.name, one.queued, until=one.answered, lease=0.0)


def _when_it_may_hold(hold: Hold) -> float:
    return hold.asked if hold.granted is None else hold.granted

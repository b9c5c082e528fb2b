"""An exhaustive search over all orders in which a lock could have answered: the reference for the checker."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from leasehold_lab.history import Hold, Mode, Try

Event = tuple[float, float, str, int]
"""The window in which it took effect, its kind (take, give, refuse), and the number of its operation."""


def can_be(holds: list[Hold], tries: list[Try], *, tokens: bool = False) -> bool:
    """Return, by trying all orders, whether a lock of that kind could have answered like this."""
    sure = [number for number, one in enumerate(holds) if one.granted is not None]
    maybe = [number for number, one in enumerate(holds) if one.granted is None]
    for count in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, count):
            if _search(holds, tries, [*sure, *chosen], tokens):
                return True
    return False


def _search(holds: list[Hold], tries: list[Try], present: list[int], tokens: bool) -> bool:
    events: list[Event] = []
    for number in present:
        one = holds[number]
        end = float("inf")
        events.append((one.asked, end if one.granted is None else one.granted, "take", number))
        begin = one.asked if one.granted is None else one.until
        events.append((begin, end if one.freed is None else one.freed, "give", number))
    events += [(one.asked, one.answered, "refuse", number) for number, one in enumerate(tries)]

    def step(left: list[Event], now: float, active: frozenset[int], highest: int) -> bool:
        if not left:
            return True
        for event in left:
            begin, end, what, number = event
            at = max(now, begin)
            if at > end or any(other[1] < at for other in left):
                continue
            rest = [other for other in left if other is not event]
            if what == "refuse":
                fits = bool(active)
                after, top = active, highest
            elif what == "give":
                fits, after, top = number in active, active - {number}, highest
            else:
                fits = _may_enter(holds[number], [holds[other] for other in active])
                token = holds[number].token
                if tokens and token is not None:
                    fits = fits and token > highest
                after, top = active | {number}, max(highest, token or 0)
            if fits and step(rest, at, after, top):
                return True
        return False

    return step(events, 0.0, frozenset(), 0)


def _may_enter(me: Hold, active: Iterable[Hold]) -> bool:
    for other in active:
        if Mode.EXCLUSIVE in (me.mode, other.mode):
            return False
    return sum(other.permits for other in active) + me.permits <= me.limit if me.mode is Mode.PERMITS else True

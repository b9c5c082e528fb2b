"""What successive looks at a store show: ages, and hand-overs a second. Pure: no I/O, no clock.

Theory of operation
-------------------
`Looks.add` takes the answer of one look, and returns a `Row` for each name. Two columns are not in the answer:

- *Age.* On most stores a fencing token is the store's clock in microseconds at the moment of the grant. That clock may
  differ from ours, so the age is kept within what was seen: a holder that was absent in the last look is younger than
  that look, and one that was present is older. A token that is no time gives a lower bound: the time since the holder
  was first seen.
- *Hand-overs a second.* Each token that was not there in the last look is a new grant. So a name that is passed on many
  times between two looks counts once: the rate is a lower bound whenever it has reached what the looks can show.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold._inspection import LockInfo

WINDOW = 10.0  # seconds over which hand-overs are averaged
BEGINNING_OF_TIME = 1_500_000_000  # seconds since 1970 (2017): a token below that in microseconds is no time
AHEAD = 86_400.0  # seconds by which the store's clock may be ahead of ours; a token beyond is no time


@dataclass(frozen=True, slots=True)
class Row:
    """One name, as the last look saw it."""

    info: LockInfo
    age: float  # seconds since the oldest holder's grant; 0 if nobody holds it
    age_at_least: bool  # the age is a lower bound
    rate: float  # hand-overs a second
    rate_at_least: bool  # there was a hand-over between any two looks: there may be more

    @property
    def left(self) -> float:
        """Seconds until the first of the leases ends, or until the name is free after a lock delay."""
        return min((holder.remaining for holder in self.info.holders), default=self.info.free_in or math.inf)


SORTS: Mapping[str, Callable[[Row], Any]] = {
    "waiters": lambda row: -len(row.info.waiters),
    "name": lambda row: row.info.name,
    "age": lambda row: -row.age,
    "left": lambda row: row.left,
    "rate": lambda row: -row.rate,
}
"""The keys by which rows can be sorted, the most interesting first. Rows with the same key are in order of name."""


@dataclass(slots=True)
class _Seen:
    """What is remembered of a name from look to look."""

    highest: int = 0  # the highest token seen
    holders: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """By token: the earliest and the latest time, of our monotonic clock, at which it can have been granted."""
    grants: deque[tuple[float, int]] = field(
        default_factory=deque[tuple[float, int]]
    )  # time of a look, and new tokens in it
    last: float = 0.0  # the time of the last look in which the name was


class Looks:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._names: dict[str, _Seen] = {}
        self._times: deque[float] = deque()  # of the looks within the window, and of the one before
        self._sent: float | None = None

    def add(self, infos: Iterable[LockInfo], *, sent: float, now: float, wall: float) -> list[Row]:
        """Return the rows of a look.

        Args:
            infos: the answer.
            sent: when the look was sent, on the monotonic clock.
            now: when the answer arrived, on the same clock.
            wall: the same moment in seconds since 1970.
        """
        before, self._sent = self._sent, sent
        self._times.append(now)
        while len(self._times) > 2 and self._times[1] <= now - WINDOW:
            self._times.popleft()
        rows = [self._row(info, before, now, wall) for info in infos]
        self._names = {name: seen for name, seen in self._names.items() if seen.last > now - WINDOW}
        return rows

    def _row(self, info: LockInfo, before: float | None, now: float, wall: float) -> Row:
        seen = self._names.setdefault(info.name, _Seen())
        new = self._granted(seen, info, before, now)
        seen.last = now
        if new:
            seen.grants.append((now, new))
        while seen.grants and seen.grants[0][0] <= self._times[0]:
            seen.grants.popleft()
        window = now - self._times[0]
        grants = sum(count for _, count in seen.grants)
        age, at_least = _age(seen, now, wall)
        steps = len(self._times) - 1
        return Row(info, age, at_least, grants / window if window > 0 else 0.0, 0 < steps <= len(seen.grants))

    @staticmethod
    def _granted(seen: _Seen, info: LockInfo, before: float | None, now: float) -> int:
        """Record the holders of a look; return how many grants there were since the one before, at the least."""
        tokens = [holder.token for holder in info.holders if holder.token is not None]
        new = [token for token in tokens if token not in seen.holders]
        earliest = -math.inf if before is None else before
        known = {token: seen.holders[token] for token in tokens if token in seen.holders}
        seen.holders = known | dict.fromkeys(new, (earliest, now))
        passed = info.token > max(seen.highest, *tokens, 0) and seen.highest > 0  # granted and ended between the looks
        seen.highest = max(seen.highest, info.token, *tokens)
        return 0 if before is None else len(new) + passed


def _age(seen: _Seen, now: float, wall: float) -> tuple[float, bool]:
    """Return the age of the oldest holder, and whether it is a lower bound only."""
    oldest, at_least = 0.0, False
    for token, (earliest, latest) in seen.holders.items():
        granted = token / 1e6
        is_time = BEGINNING_OF_TIME < granted < wall + AHEAD
        least, most = now - latest, now - earliest
        age = min(max(wall - granted, least), most) if is_time else least
        if age >= oldest:
            oldest, at_least = age, not is_time
    return oldest, at_least

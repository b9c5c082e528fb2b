"""Who held what when, from events or from inspections: bounded, in memory, for pages and reports.

A `History` is an observer, so it can be given to a client. It then knows what that client did. It can also be given
what an inspection of the store shows, again and again: then it knows what all clients did, as far as one saw it.

Times are readings of the wall clock, in seconds since 1970: they are for display. Clocks of different machines differ,
so two holders that overlap by less than that difference may not have overlapped. A hold lasts from when its grant
arrived to when its release began: the next holder may have the lock before the answer to the release has arrived.

Example:
    ```python
    from leasehold import Client
    from leasehold.observability.history import History

    history = History()
    with Client.from_url("memory:", observer=history) as locks, locks.lock("stock:42"):
        pass
    [held] = history.intervals("stock:42")
    print(f"{held.owner} held it for {held.seconds:.3f} s")
    ```
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from leasehold.events import Acquired, Event, Lost, Released
from leasehold.observability._one_at_a_time import OneAtATime

__all__ = ["History", "Holding", "Interval", "overlaps"]

GAPS = 100
"""Gaps that are kept."""

Ending = str
"""How an interval ended: ``held`` (it has not), ``released``, ``unconfirmed`` (released without an answer), ``lost``,
or ``gone`` (an inspection did not show it any more)."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A holder, as an inspection shows it."""

    name: str
    kind: str  # ``mutex``, ``rw`` or ``semaphore``
    owner: str  # ``host:pid:client``
    token: int


@dataclass(frozen=True, slots=True)
class Interval:
    """One stretch of time in which a name was held."""

    name: str
    kind: str  # ``mutex``, ``rw`` or ``semaphore``
    owner: str  # ``host:pid:client``
    token: int
    start: float  # wall clock
    end: float | None = None  # wall clock; None while it is held
    ending: Ending = "held"
    why: str = ""  # of a loss, for people
    waited: float = 0.0  # seconds before it was acquired
    store: str = ""  # the store's URL without secrets
    namespace: str = ""
    seen_begin: bool = True  # False if it was held already when the first inspection was made

    @property
    def seconds(self) -> float:
        """The length; until now, while it is held."""
        return max(0.0, (time.time() if self.end is None else self.end) - self.start)


Key = tuple[str, str, int]
"""Owner, name and token: no two holds of one store have the same."""


class History:
    """The last intervals of each of the names that were used last. Safe to use from all threads."""

    def __init__(self, *, names: int = 1000, per_name: int = 100, total: int | None = None) -> None:
        """Make an empty history.

        Args:
            names: how many names are kept; beyond that, the least recently used name is forgotten.
            per_name: how many ended intervals of each are kept.
            total: how many ended intervals of all names together are kept; those of the name that was not used for
                longest go first. ``names * per_name`` by default.

        Raises:
            ValueError: one of them is below 1.
        """
        total = names * per_name if total is None else total
        if min(names, per_name, total) < 1:
            raise ValueError(f"names ({names}), per_name ({per_name}) and total ({total}) must be at least 1")
        self._names, self._per_name, self._total = names, per_name, total
        self._count = 0  # of ended intervals
        self._ended: OrderedDict[str, deque[Interval]] = OrderedDict()  # the name that was used last comes last
        self._open: dict[Key, Interval] = {}
        self._seen: set[Key] = set()  # those of them that the last inspection showed
        self._inspected: float | None = None  # when that was
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS)
        self._take = OneAtATime(self._handle)

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind matter here."""
        return kind in (Acquired, Released, Lost)

    def __call__(self, event: Event) -> None:
        """Take an event of a client."""
        if isinstance(event, (Acquired, Released, Lost)):
            self._take(event)

    def saw(self, holders: Iterable[Holding], at: float | None = None, *, longest_pause: float = math.inf) -> None:
        """Take what an inspection of the store shows: all holders of all names, at a reading of the wall clock.

        A holder that is shown for the first time began at that moment, at the latest. One that is not shown any more
        has ended by then. A pause since the last inspection that is longer than ``longest_pause`` is a gap.
        """
        self._take((tuple(holders), time.time() if at is None else at, longest_pause))

    def names(self) -> list[str]:
        """Return the names that it knows, in order."""
        with self._take.mutex:
            return sorted({*self._ended, *(name for _, name, _ in self._open)})

    def intervals(self, name: str | None = None) -> list[Interval]:
        """Return the intervals of a name, or of all names, by their start."""
        with self._take.mutex:
            ended = [self._ended.get(name, ())] if name is not None else list(self._ended.values())
            found = [each for intervals in ended for each in intervals]
            found += [each for each in self._open.values() if name in (None, each.name)]
        return sorted(found, key=lambda each: (each.start, each.token))

    def gaps(self) -> list[tuple[float, float]]:
        """Return the last pauses between inspections that were long, from when until when: nothing is known of them."""
        with self._take.mutex:
            return list(self._gaps)

    # --- inside ------------------------------------------------------------------------------------------------

    def _handle(self, given: Event | tuple[Sequence[Holding], float, float]) -> None:
        match given:
            case Acquired():
                held = Interval(
                    *(given.name, given.kind, given.owner, given.token, given.time),
                    waited=given.waited,
                    store=given.store,
                    namespace=given.namespace,
                )
                self._begin(held)
            case Released():
                ending, start = "released" if given.confirmed else "unconfirmed", given.time - given.held
                self._finish(given, start, given.time - given.took, ending)
            case Lost():
                self._finish(given, given.time - given.held, given.time, "lost", given.why)
            case (holders, float() as at, float() as longest_pause):
                self._compare(holders, at, longest_pause)
            case _:
                pass

    def _begin(self, interval: Interval) -> None:
        key = interval.owner, interval.name, interval.token
        seen = self._open.get(key)
        self._open[key] = interval if seen is None else replace(interval, start=min(seen.start, interval.start))
        self._use(interval.name)

    def _finish(self, event: Released | Lost, since: float, end: float, ending: Ending, why: str = "") -> None:
        begun = self._open.pop((event.owner, event.name, event.token), None)
        if begun is None:  # it began before this history
            begun = Interval(
                *(event.name, event.kind, event.owner, event.token, since), store=event.store, namespace=event.namespace
            )
        self._put(replace(begun, end=max(begun.start, end), ending=ending, why=why))

    def _compare(self, holders: Sequence[Holding], at: float, longest_pause: float) -> None:
        before, self._inspected = self._inspected, at
        if before is not None and at - before > longest_pause:
            self._gaps.append((before, at))
        now = {(each.owner, each.name, each.token): each for each in holders}
        for key in self._seen - now.keys():
            if (begun := self._open.pop(key, None)) is not None:
                self._put(replace(begun, end=max(begun.start, at), ending="gone"))
        for key, each in now.items():
            if key not in self._open:
                self._begin(Interval(each.name, each.kind, each.owner, each.token, at, seen_begin=before is not None))
        self._seen = set(now)

    def _put(self, interval: Interval) -> None:
        ended = self._use(interval.name)
        self._count += len(ended) < self._per_name
        ended.append(interval)
        while self._count > self._total:
            name, oldest = next(iter(self._ended.items()))
            if oldest:
                oldest.popleft()
                self._count -= 1
            if not oldest:
                del self._ended[name]

    def _use(self, name: str) -> deque[Interval]:
        ended = self._ended.pop(name, None) or deque[Interval](maxlen=self._per_name)
        self._ended[name] = ended
        while len(self._ended) > self._names:
            self._count -= len(self._ended.popitem(last=False)[1])
        return ended


def overlaps(intervals: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Return the pairs of intervals of one lock (a ``mutex``) that have time in common: two holders at once.

    Those of different names, stores or namespaces do not count, nor do readers or the permits of a semaphore.
    """
    by_lock: dict[tuple[str, str, str], list[Interval]] = {}
    for each in intervals:
        if each.kind == "mutex":
            by_lock.setdefault((each.store, each.namespace, each.name), []).append(each)
    pairs: list[tuple[Interval, Interval]] = []
    for group in by_lock.values():
        still: list[Interval] = []
        for each in sorted(group, key=lambda each: (each.start, each.token)):
            still = [other for other in still if _end(other) > each.start]
            pairs += [(other, each) for other in still]
            still.append(each)
    return pairs


def _end(interval: Interval) -> float:
    return float("inf") if interval.end is None else interval.end

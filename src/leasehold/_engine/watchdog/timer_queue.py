"""A queue of timers, one for each item, which are cheap to move and to remove."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class TimerQueue(Generic[T]):
    """Each item has at most one timer. Entries of moved and removed items stay in the heap until they come to its top.

    `put` costs O(log n), and the heap has at most about twice as many entries as there are items. Only the thread that
    runs the schedule may call `put`, `next` and `due`. Any thread may call `remove` at any time: it is atomic.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._when: dict[T, float] = {}
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._when)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._when))

    def __contains__(self, item: T) -> bool:
        return item in self._when

    def put(self, item: T, when: float) -> None:
        """Set the timer of ``item``, or move it."""
        self._when[item] = when
        heapq.heappush(self._heap, (when, next(self._count), item))
        if len(self._heap) > 2 * len(self._when) + 64:
            self._heap = [entry for entry in self._heap if self._when.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def remove(self, item: T) -> None:
        """Remove the timer of ``item``, if it has one."""
        self._when.pop(item, None)

    def due(self, now: float) -> list[T]:
        """Remove and return all items whose time is not after ``now``, earliest first."""
        items: list[T] = []
        while (when := self.next()) is not None and when <= now:
            item = heapq.heappop(self._heap)[2]
            if self._when.pop(item, None) is not None:  # another thread may have removed it just now
                items.append(item)
        return items

    def next(self) -> float | None:
        """Return the earliest time, or None."""
        while self._heap:
            when, _, item = self._heap[0]
            if self._when.get(item) == when:
                return when
            heapq.heappop(self._heap)
        return None

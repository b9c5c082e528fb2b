"""A buffer for the figures of acquires and releases: filled by the threads that act, processed when they are read.

Without a reader, the threads that act process it in batches. One by one it would cost three times as much: what the
metrics library needs is out of the processor's caches after each request to the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from leasehold.events import Event
from leasehold.observability._one_at_a_time import OneAtATime

T = TypeVar("T")

WAITING = 8192  # figures of each sort that may wait
BATCH = 256  # figures that a thread works off that finds so many waiting


class Figures(NamedTuple):
    """What came since the last time."""

    acquired: list[tuple[str, float, bool]]  # name, waited, queued
    released: list[tuple[str, float]]  # name, held


class Buffered:
    """Collects figures; calls ``take`` with them, and ``event`` with events, one at a time."""

    def __init__(
        self, take: Callable[[Figures], None], event: Callable[[Event], None], forked: Callable[[], None]
    ) -> None:
        self._acquired: deque[tuple[str, float, bool]] = deque()
        self._released: deque[tuple[str, float]] = deque()
        self._take = take
        self._event = event
        self._forked = forked
        self._handle = OneAtATime[Event | int](self._one, self._after_fork)
        self._is_child = False

    def acquired(self, name: str, waited: float, queued: bool) -> None:
        """Put in an acquire."""
        self._acquired.append((name, waited, queued))
        if len(self._acquired) >= WAITING:
            self._handle(BATCH)

    def released(self, name: str, held: float) -> None:
        """Put in a release."""
        self._released.append((name, held))
        if len(self._released) >= WAITING:
            self._handle(BATCH)

    def put(self, event: Event) -> None:
        """Work off an event at once."""
        self._handle(event)

    def flush(self) -> None:
        """Work off what waits."""
        self._handle(2 * WAITING)

    def _one(self, what: Event | int) -> None:
        if self._is_child:
            self._is_child = False
            self._forked()
        if isinstance(what, Event):
            self._event(what)
        else:
            self._take(Figures(_first_of(self._acquired, what), _first_of(self._released, what)))

    def _after_fork(self) -> None:
        """Drop what belongs to the parent, in a forked child; the rest waits for the first use there."""
        self._acquired.clear()
        self._released.clear()
        self._is_child = True


def _first_of(waiting: deque[T], most: int) -> list[T]:
    return [waiting.popleft() for _ in range(min(most, len(waiting)))]

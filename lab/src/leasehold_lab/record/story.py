"""What a record tells of each lock: its holds, those at the same time, and those whose end is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from leasehold.events import Event, GaveUp
from leasehold.observability.history import History, Interval, overlaps
from leasehold.observability.recorder import read


@dataclass(frozen=True, slots=True)
class Story:
    """One lock of one store.

    Attributes:
        holds: by their start. One with the ending ``held`` has no end in the record: it is drawn up to the next hold,
            or up to the end of the record, and does not count as an overlap.
        pairs: those that had time in common.
        timeouts: acquires that ended without the lock.

    """

    name: str
    store: str
    namespace: str
    holds: tuple[Interval, ...]
    pairs: tuple[tuple[Interval, Interval], ...]
    timeouts: int

    @property
    def lost(self) -> int:
        """Leases that ended before their release."""
        return sum(hold.ending == "lost" for hold in self.holds)

    @property
    def open(self) -> int:
        """Holds whose end is not recorded."""
        return sum(hold.ending == "held" for hold in self.holds)

    @property
    def longest(self) -> float:
        """Seconds of the longest hold with a known end."""
        return max((hold.seconds for hold in self.holds if hold.ending != "held"), default=0.0)

    @property
    def longest_wait(self) -> float:
        """Seconds of the longest wait of a hold."""
        return max((hold.waited for hold in self.holds), default=0.0)


def events_of(files: Iterable[Path]) -> list[Event]:
    """Return the events of files, those of each client in their order, whatever the order of the files is."""
    events: list[Event] = []
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            events += read(lines)
    return sorted(events, key=attrgetter("owner", "at"))


def stories(events: Iterable[Event]) -> list[Story]:
    """Return what became of each lock, those with overlaps first, then those with losses."""
    events = list(events)
    by_lock: dict[tuple[str, str, str], list[Event]] = {}
    for event in events:
        by_lock.setdefault((event.store, event.namespace, event.name), []).append(event)
    last = max((event.time for event in events), default=0.0)
    found = [_story(*lock, its_events, last) for lock, its_events in by_lock.items()]
    return sorted(found, key=lambda story: (-len(story.pairs), -story.lost, story.name))


def _story(store: str, namespace: str, name: str, events: list[Event], last: float) -> Story:
    history = History(names=1, per_name=max(1, len(events)))
    for event in events:
        history(event)
    holds = history.intervals(name)
    known = [hold for hold in holds if hold.end is not None]
    drawn = [hold if hold.end is not None else _until_the_next(hold, holds, last) for hold in holds]
    timeouts = sum(isinstance(event, GaveUp) for event in events)
    return Story(name, store, namespace, tuple(drawn), tuple(overlaps(known)), timeouts)


def _until_the_next(hold: Interval, holds: list[Interval], last: float) -> Interval:
    """Return a hold without an end with one for display: its process was killed, or the record ends before it."""
    later = [each.start for each in holds if each.start > hold.start and hold.kind == "mutex"]
    return replace(hold, end=max(hold.start, min(later, default=last)))

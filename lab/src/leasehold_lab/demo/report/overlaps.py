"""Which sections of time overlap. Pure: it knows nothing of locks."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol


class Section(Protocol):
    """A stretch of time, from before the first to after the last thing that was done in it."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


Span = tuple[int, int]
"""Start and end."""


def overlapping_pairs(sections: Iterable[Section]) -> int:
    """Count the pairs that have some time in common. Sections that only touch do not overlap."""
    open_ends: list[int] = []
    count = 0
    for section in sorted(sections, key=lambda section: section.start):
        while open_ends and open_ends[0] <= section.start:
            heapq.heappop(open_ends)
        count += len(open_ends)
        heapq.heappush(open_ends, section.end)
    return count


def most_at_once(sections: Iterable[Section]) -> int:
    """Return the largest number of sections that were open at the same time."""
    return max((count for _, _, count in _levels(sections)), default=0)


def crowded(sections: Iterable[Section]) -> list[Span]:
    """Return, in order and merged, the times at which two or more sections were open."""
    spans: list[Span] = []
    for start, end, count in _levels(sections):
        if count < 2:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def shelves(sections: Sequence[Section]) -> list[int]:
    """Give each section a shelf, lowest first, so that no two on one shelf overlap. In the order given."""
    busy: list[tuple[int, int]] = []  # end, shelf
    free: list[int] = []
    found = [0] * len(sections)
    for index in sorted(range(len(sections)), key=lambda index: (sections[index].start, sections[index].end)):
        while busy and busy[0][0] <= sections[index].start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        found[index] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (sections[index].end, found[index]))
    return found


def cut(section: Section, spans: Sequence[Span]) -> list[Span]:
    """Return the parts of ``section`` within ``spans``, which are in order and apart, as `crowded` has them."""
    parts: list[Span] = []
    for index in range(bisect_right(spans, section.start, key=lambda span: span[1]), len(spans)):
        start, end = spans[index]
        if start >= section.end:
            break
        parts.append((max(section.start, start), min(section.end, end)))
    return parts


def rest(section: Section, parts: Sequence[Span]) -> list[Span]:
    """Return what `cut` left: the parts of ``section`` that lie outside ``parts``, which are in order."""
    edges = [section.start, *(edge for part in parts for edge in part), section.end]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in gaps if start < end]


def _levels(sections: Iterable[Section]) -> list[tuple[int, int, int]]:
    """Return (start, end, how many are open) between each two moments at which that number changes."""
    steps: dict[int, int] = {}
    for section in sections:
        if section.start < section.end:
            steps[section.start] = steps.get(section.start, 0) + 1
            steps[section.end] = steps.get(section.end, 0) - 1
    levels: list[tuple[int, int, int]] = []
    count = 0
    for start, end in pairwise(sorted(steps)):
        count += steps[start]
        levels.append((start, end, count))
    return levels

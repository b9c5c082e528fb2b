"""Names of locks as labels of metrics: few, by the user's patterns, and never more than a limit.

A label has one time series for each of its values, for ever. A name such as ``order:4711`` would make millions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate

__all__ = ["OTHER", "Labels", "Names", "static_prefix"]

OTHER = "other"
"""The label of all names that have none of their own."""

LONGEST = 100  # characters of a label; the rest is cut
REMEMBERED = 10_000  # names whose labels are remembered

Names = Sequence[str] | Callable[[str], str]
"""Patterns such as ``order:*``, of which the first that fits is the label; or a function from a name to its label."""

VARIABLE = re.compile(r"[:/]|\d")


class Labels:
    """Gives each name of a lock its label."""

    def __init__(self, names: Names | None = None, limit: int = 100) -> None:
        """Take patterns, a function, or None for `static_prefix`; at most ``limit`` labels, then `OTHER`.

        Raises:
            TypeError: ``names`` is one text; write it as a list.
            ValueError: ``limit`` is below 1, or there are more patterns than that.
        """
        if isinstance(names, str):
            raise TypeError(f"names must be a list of patterns or a function, not a text; write [{names!r}]")
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._function = static_prefix if names is None else names if callable(names) else _first_of(names)
        if names is not None and not callable(names) and len(names) > limit:
            raise ValueError(f"{len(names)} patterns are more than the limit of {limit} labels; raise limit")
        self._limit = limit
        self._known: set[str] = set()
        self._remembered: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Return the label of a name."""
        found = self._remembered.get(name)
        return self._find(name) if found is None else found

    def _find(self, name: str) -> str:
        try:
            label = str(self._function(name))[:LONGEST] or OTHER
        except Exception:  # a user's function: the figures of the lock still count
            label = OTHER
        if label not in self._known:
            if len(self._known) >= self._limit:
                label = OTHER
            else:
                self._known.add(label)
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered[name] = label
        return label


def static_prefix(name: str) -> str:
    """Return the part of a name that is probably the same for many: ``order:*`` of ``order:42``, ``job*`` of ``job7``.

    It ends at the first colon, slash or digit. A name without any is its own label.
    """
    found = VARIABLE.search(name)
    if found is None:
        return name
    end = found.start() + (not found.group().isdigit())
    return f"{name[:end]}*"


def _first_of(patterns: Sequence[str]) -> Callable[[str], str]:
    compiled = [(pattern, re.compile(translate(pattern))) for pattern in patterns]

    def label(name: str) -> str:
        return next((pattern for pattern, fits in compiled if fits.match(name)), OTHER)

    return label

"""A row of another library's table, as a statement returns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leasehold.stores._sql.transport import Row


class Found(NamedTuple):
    """A row as it was read; times in microseconds since 1970."""

    holder: str
    since: int
    until: int
    now: int

    def held_by(self, holder: str) -> bool:
        """Return whether this holder's lease has not ended."""
        return self.holder == holder and self.until > self.now


def found_in(answers: Sequence[Sequence[Row]]) -> Found | None:
    """Return the row that the last of some statements returned; None if there was none."""
    rows = answers[-1]
    return Found(*rows[0]) if rows else None

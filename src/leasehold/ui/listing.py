"""The part of the list that a page shows: searched, filtered, sorted, and cut into pages on the server.

So a page holds a few dozen rows, whatever the store has, and the browser stays fast.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leasehold.ui.shown import DANGER, ORDER, Row, summary

PER_PAGE = 50

SORTS: Mapping[str, Callable[[Row], Any]] = {
    "name": lambda row: row.view.name,
    "attention": lambda row: (ORDER[row.state], -len(row.view.waiters), row.view.name),
    "waiting": lambda row: (-len(row.view.waiters), row.view.name),
    "lease": lambda row: (row.remaining, row.view.name),
}


@dataclass(frozen=True, slots=True)
class Query:
    """What a page asks for."""

    text: str = ""
    kind: str = ""
    state: str = ""
    sort: str = "name"
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Query:
        """Read the query of a URL; what makes no sense is left out."""
        page = parameters.get("page", "")
        sort = parameters.get("sort", "name")
        return cls(
            text=parameters.get("q", "").strip()[:512],
            kind=parameters.get("kind", ""),
            state=parameters.get("state", ""),
            sort=sort if sort in SORTS else "name",
            page=min(max(int(page), 1), 1_000_000) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
        )

    def matches(self, row: Row) -> bool:
        """Return whether a row belongs to the list."""
        if self.kind and row.kind != self.kind:
            return False
        if self.state and not has_state(row, self.state):
            return False
        return not self.text or _has_text(row, self.text.casefold())


def has_state(row: Row, state: str) -> bool:
    """Return whether a row counts as in a state: one in danger is held as well, and may be waited for."""
    if state == "waiting":
        return bool(row.view.waiters)
    if state == "held":
        return bool(row.view.holders)
    return row.state == state


def _has_text(row: Row, text: str) -> bool:
    if text in row.view.name.casefold():
        return True
    for entry in (*row.view.holders, *row.view.waiters):
        terms = entry.ticket.terms
        if text in f"{terms.owner.host}:{terms.owner.pid}".casefold() or text in terms.meta.casefold():
            return True
    return False


def totals(rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the figures above the list."""
    states = Counter(row.state for row in rows.values())
    kinds = Counter(row.kind for row in rows.values())
    return {
        "names": len(rows),
        "held": sum(1 for row in rows.values() if row.view.holders),
        "waiting": sum(1 for row in rows.values() if row.view.waiters),
        "waiters": sum(len(row.view.waiters) for row in rows.values()),
        "danger": states[DANGER],
        "kinds": dict(sorted(kinds.items())),
    }


def listed(rows: Mapping[str, Row], query: Query) -> dict[str, Any]:
    """Return one page of the list."""
    found = [row for row in rows.values() if query.matches(row)]
    found.sort(key=SORTS[query.sort])
    pages = max(1, math.ceil(len(found) / PER_PAGE))
    page = min(query.page, pages)
    part = found[(page - 1) * PER_PAGE : page * PER_PAGE]
    return {
        "matching": len(found),
        "page": page,
        "pages": pages,
        "first": (page - 1) * PER_PAGE + 1 if found else 0,
        "rows": [summary(row) for row in part],
    }

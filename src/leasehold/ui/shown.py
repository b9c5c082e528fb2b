"""What the pages show of a lock, as values that JSON knows.

Names, owners and meta are written by strangers: they are sent as data, and pages set them as text. Characters that
control a terminal or turn the direction of writing are escaped, so that one name cannot look like another. Tokens are
sent as text, since a browser's numbers end at 2**53.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, cast

from leasehold.cli.output import printable, without_secrets
from leasehold.observability.history import Interval
from leasehold.store_api import Finding, Kind, QueueEntry, View

DANGER_BELOW = 0.5
"""The part of its lease below which a hold is in danger: a holder that lives renews at two thirds."""

FOUND_WITHIN = 1_000_000  # seconds; a longer lease is shown as one without end

PREFIXES = {
    "election": "election",
    "barrier": "barrier",
    "once": "once",
    "scheduled": "scheduled",
    "shared": "cached",
}
"""Prefix of a name to the primitive that uses it, by the rules of this library."""

DANGER, WAITING, HELD, DELAYED, FREE = "danger", "waiting", "held", "delayed", "free"

ORDER = {DANGER: 0, WAITING: 1, DELAYED: 2, HELD: 3, FREE: 4}
"""States in order of the attention that they deserve."""


@dataclass(frozen=True, slots=True)
class Row:
    """One name, with what it is sorted and filtered by."""

    view: View
    kind: str
    state: str
    remaining: float  # seconds of the shortest lease of a holder; infinite for none


def row_of(view: View) -> Row:
    """Return what is shown of a name."""
    least = math.inf
    danger = False
    for entry in view.holders:
        least = min(least, entry.expires)
        danger = danger or entry.expires < DANGER_BELOW * entry.ticket.terms.lease < FOUND_WITHIN
    if danger:
        state = DANGER
    elif view.waiters:
        state = WAITING
    elif view.holders:
        state = HELD
    else:
        state = DELAYED if view.free_in > 0 else FREE
    return Row(view, kind_of(view), state, least)


def kind_of(view: View) -> str:
    """Return the primitive: a lock that nothing tells from others is a lock."""
    prefix, slash, _ = view.name.partition("/")
    if slash and prefix in PREFIXES and (view.kind is Kind.MUTEX or prefix == "barrier"):
        return PREFIXES[prefix]
    return {Kind.MUTEX: "lock", Kind.READ_WRITE: "rw", Kind.SEMAPHORE: "semaphore"}[view.kind]


def summary(row: Row) -> dict[str, Any]:
    """Return a line of the list."""
    view = row.view
    first = view.holders[0] if view.holders else None
    return {
        "name": view.name,
        "shown": printable(view.name),
        "kind": row.kind,
        "state": row.state,
        "holder": None if first is None else who(first),
        "holders": len(view.holders),
        "remaining": seconds(row.remaining),
        "lease": None if first is None else seconds(first.ticket.terms.lease),
        "waiters": len(view.waiters),
        "token": str(view.token) if view.token else None,
        "free_in": view.free_in,
        "use": use(view),
    }


def details(row: Row) -> dict[str, Any]:
    """Return the page of a lock."""
    view = row.view
    return {
        **summary(row),
        "entries": [entry_of(entry, view.kind) for entry in view.holders],
        "queue": [entry_of(entry, view.kind) for entry in view.waiters],
    }


def free(name: str) -> dict[str, Any]:
    """Return the page of a name that the store does not know now."""
    return {
        "name": name,
        "shown": printable(name),
        "kind": "lock",
        "state": FREE,
        "holder": None,
        "holders": 0,
        "remaining": None,
        "lease": None,
        "waiters": 0,
        "token": None,
        "free_in": 0.0,
        "use": {},
        "entries": [],
        "queue": [],
    }


def use(view: View) -> dict[str, Any]:
    """Return how much of the name is in use: permits of a semaphore, readers or the writer."""
    if view.kind is Kind.SEMAPHORE:
        taken = sum(entry.ticket.terms.mode.permits for entry in view.holders)
        limit = max((entry.ticket.terms.mode.limit for entry in (*view.holders, *view.waiters)), default=0)
        return {"taken": taken, "limit": limit}
    if view.kind is Kind.READ_WRITE:
        writers = sum(entry.ticket.terms.mode.exclusive for entry in view.holders)
        return {"readers": len(view.holders) - writers, "writers": writers}
    return {}


def entry_of(entry: QueueEntry, kind: Kind) -> dict[str, Any]:
    """Return a holder or a waiter."""
    terms = entry.ticket.terms
    found = {
        **who(entry),
        "client": printable(terms.owner.client),
        "token": None if entry.token is None else str(entry.token),
        "remaining": seconds(entry.expires),
        "lease": seconds(terms.lease),
        "delay": terms.lock_delay,
        "meta": meta_of(terms.meta),
        "role": "",
    }
    if kind is Kind.READ_WRITE:
        found["role"] = "writer" if terms.mode.exclusive else "upgradeable" if terms.mode.upgradeable else "reader"
    elif kind is Kind.SEMAPHORE:
        found["role"] = f"{terms.mode.permits} permit{'s' * (terms.mode.permits != 1)}"
    return found


def who(entry: QueueEntry) -> dict[str, Any]:
    """Return the host and the process of a holder or waiter."""
    owner = entry.ticket.terms.owner
    return {"host": printable(owner.host), "pid": owner.pid}


def meta_of(text: str) -> list[list[str]] | None:
    """Return meta as pairs of a key and a text; a plain text has the key ''."""
    if not text:
        return None
    try:
        meta = json.loads(text)
    except ValueError:
        meta = text
    return value_of(meta)


def value_of(value: object) -> list[list[str]]:
    """Return a text or a mapping as pairs."""
    if isinstance(value, dict):
        return [[printable(str(key)), _plain(one)] for key, one in cast(dict[object, object], value).items()]
    return [["", _plain(value)]]


def _plain(value: object) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def interval_of(interval: Interval) -> dict[str, Any]:
    """Return a hold of the past or of now."""
    host, _, client = interval.owner.rpartition(":")
    return {
        "token": str(interval.token),
        "process": printable(host.replace(":", " pid ") if host.count(":") == 1 else host),
        "client": printable(client),
        "since": interval.start,
        "until": interval.end,
        "begun": interval.seen_begin,
    }


def finding_of(finding: Finding) -> dict[str, Any]:
    """Return one of doctor's findings."""
    return {
        "severity": finding.severity.name.lower(),
        "subject": printable(finding.subject),
        "found": printable(without_secrets(finding.found)),
        "meaning": printable(without_secrets(finding.meaning)),
        "remedy": printable(without_secrets(finding.remedy)),
    }


def error_text(error: BaseException) -> str:
    """Return why the store did not answer, in one line without secrets."""
    text = str(error) or ("it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    return without_secrets(text).replace("\n", " ")


def seconds(value: float) -> float | None:
    """Return a length of time; None for one without end."""
    return round(value, 3) if value < FOUND_WITHIN else None

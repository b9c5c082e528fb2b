"""Reads the holders of locks, for people: a session and a thread. The servers do not tell which client that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket, View
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Driver
from leasehold.stores.hazelcast.tickets import TicketState

AT_ONCE = 100
"""Locks that are asked for together."""


async def inspect(
    driver: Driver,
    group: Any,
    name_prefix: str,
    prefix: str,
    mine: Mapping[tuple[int, int], TicketState],
    *,
    exact: bool,
    now: Callable[[], float],
    within: float,
) -> list[View]:
    """Return the held locks whose names begin with ``prefix`` (``exact``: equal it), and our own waiters for them."""
    begins = name_prefix + prefix
    names = [begins]
    if not exact:
        known = await driver.ask(*requests.names(group), now() + within)
        names = sorted(name for name in known if name.startswith(begins))
    views = list[View]()
    for start in range(0, len(names), AT_ONCE):
        some, until = names[start : start + AT_ONCE], now() + within
        calls = [await driver.send(*requests.ownership(group, name), until) for name in some]
        for name, call in zip(some, calls, strict=True):
            found: requests.Ownership = await driver.answer(call, until)
            if found.fence:
                holder = _entry(found, mine.get((found.session, found.thread)), now())
                waiters = [state for state in mine.values() if state.lock == name and state.waiting is not None]
                queue = tuple(
                    QueueEntry(state.ticket, order, state.until - now()) for order, state in enumerate(waiters)
                )
                views.append(View(name.removeprefix(name_prefix), Kind.MUTEX, found.fence, (holder,), queue))
    return views


def _entry(found: requests.Ownership, state: TicketState | None, now: float) -> QueueEntry:
    if state is not None:
        return QueueEntry(state.ticket, 0, state.until - now, found.fence)
    who = Owner(f"CP session {found.session}", 0, f"thread {found.thread}")
    terms = LeaseTerms(LockMode(), who, lease=0.0)
    return QueueEntry(Ticket(f"{found.session}.{found.thread}", terms), 0, float("inf"), found.fence)


def owner_in(ticket: str) -> tuple[int, int] | None:
    """Return the session and the thread in the id of a ticket that `inspect` returned."""
    parts = re.fullmatch(r"(\d+)\.(-?\d+)", ticket)
    return None if parts is None else (int(parts[1]), int(parts[2]))

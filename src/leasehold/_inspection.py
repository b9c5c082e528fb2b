"""What people see of a lock: who holds it, who waits, for how long."""

from __future__ import annotations

import json
from dataclasses import dataclass

from leasehold._model import QueueEntry, View


@dataclass(frozen=True, slots=True)
class Contender:
    """Who holds or waits.

    Attributes:
        owner: ``host:pid:client``.
        host: the owner's host name.
        pid: the owner's process id.
        token: the fencing token of a holder; None for a waiter.
        remaining: seconds after which the store drops it, unless it is renewed.
        meta: what the owner said of itself: a text, a mapping or None. Written by the owner: do not trust it.

    """

    owner: str
    host: str
    pid: int
    token: int | None
    remaining: float
    meta: object

    @classmethod
    def of(cls, entry: QueueEntry) -> Contender:
        """Show an entry."""
        terms = entry.ticket.terms
        try:
            meta = json.loads(terms.meta) if terms.meta else None
        except ValueError:
            meta = terms.meta
        return cls(str(terms.owner), terms.owner.host, terms.owner.pid, entry.token, entry.expires, meta)


@dataclass(frozen=True, slots=True)
class LockInfo:
    """One name as it was when it was looked at.

    Attributes:
        kind: what it is in use as: ``mutex``, ``rw`` or ``semaphore``.
        token: the highest fencing token given out that the store remembers.
        holders: who holds.
        waiters: who waits, first in line first.
        free_in: seconds for which it is still kept free after a holder's lease expired (``lock_delay``).

    """

    name: str
    kind: str
    token: int
    holders: tuple[Contender, ...]
    waiters: tuple[Contender, ...]
    free_in: float

    @classmethod
    def of(cls, view: View) -> LockInfo:
        """Show a view."""
        holders = tuple(Contender.of(entry) for entry in view.holders)
        waiters = tuple(Contender.of(entry) for entry in view.waiters)
        return cls(view.name, view.kind.value, view.token, holders, waiters, view.free_in)

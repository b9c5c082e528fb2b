"""A lock as it is shown: its holders, its waiters, and for how long."""

from __future__ import annotations

import json
from dataclasses import dataclass

from leasehold._model import QueueEntry, View


@dataclass(frozen=True, slots=True)
class Contender:
    """A holder or a waiter.

    Attributes:
        owner: ``host:pid:client``.
        host: the host of the owner.
        pid: the process id of the owner there.
        token: the fencing token of a holder. None for a waiter, and for a holder of another library that has none.
        remaining: seconds until the store drops it, unless it is renewed; ``inf`` for a lock of another library that
            has no end.
        meta: a text, a mapping or None, written by the owner: do not trust it.
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
    """One name at the moment of the inspection.

    Attributes:
        name: the lock's name, without the namespace.
        kind: what the name is in use as: ``mutex``, ``rw`` or ``semaphore``.
        token: the highest fencing token that the store has given and remembers.
        holders: all holders; none if the name is only waited for, or blocked.
        waiters: all waiters, in order of the queue.
        free_in: seconds for which the name stays blocked after a lease expired (``lock_delay``); 0 for none.
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

"""One lease that a thread or task holds several times: what re-entrant locks and read-write locks count in."""

from __future__ import annotations

import weakref
from typing import Any

from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._runtimes.base import Caller


class Entry:
    """One lease, held by one thread or task as deep as it has holds.

    The lease keeps its entry (`Lease.entry`), and each hold does. So it is there as long as one of them is, and the
    table of a client that finds it by name may refer to it weakly.
    """

    __slots__ = ("__weakref__", "_holds", "caller", "lease")

    def __init__(self, lease: Lease, caller: Caller) -> None:
        self.lease = lease
        self.caller = caller
        self._holds: list[tuple[object, weakref.ref[Any]]] = []  # each with what was asked for
        lease.entry = self
        lease.lock_object = weakref.ref(self)

    def handle(self) -> LeaseHandle:
        """Return the handle of the lease; a new one if all holds were dropped and the lease was not given up yet."""
        return self.lease.handle() or LeaseHandle(self.lease)

    def add(self, hold: Any, asked: object = None) -> None:
        """Make it deeper by a hold."""
        self._holds.append((asked, weakref.ref(hold)))

    def last(self, asked: object = None) -> tuple[bool, Any]:
        """Return whether there is a hold for which this was asked, and the last of them; None if it was dropped."""
        refs = [ref for what, ref in self._holds if what is asked]
        return bool(refs), refs[-1]() if refs else None

    def remove(self, hold: Any, asked: object = None) -> bool:
        """Make it less deep by a hold (None: by the last one that was dropped); return whether it is held still."""
        for entry in reversed(self._holds[:]):
            if entry[1]() is hold and (hold is not None or entry[0] is asked):
                self._holds = [other for other in self._holds if other is not entry]
                break
        if not self._holds:
            self.lease.entry = None  # else the two would keep each other until a collection
        return bool(self._holds)

    def drop_ended_callers(self) -> None:
        """Have the lock objects through which it was acquired keep it no longer, if its thread or task has ended."""
        for _, ref in self._holds[:]:
            hold = ref()
            lock = None if hold is None else hold._kept()
            if lock is not None:
                lock.drop_ended_callers()

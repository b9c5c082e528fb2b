"""One lease that a thread or task holds several times: the counter of re-entrant locks and read-write locks."""

from __future__ import annotations

import weakref
from typing import Any

from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._runtimes.base import Caller


class Entry:
    """One lease and the holds that one thread or task has on it.

    The lease refers to its entry (`Lease.entry`), and so does each hold. So the entry lives as long as one of them, and
    the client's table of entries by name may refer to it weakly.
    """

    __slots__ = ("__weakref__", "_holds", "caller", "lease")

    def __init__(self, lease: Lease, caller: Caller) -> None:
        self.lease = lease
        self.caller = caller
        self._holds: list[tuple[object, weakref.ref[Any]]] = []  # each with what was requested
        lease.entry = self
        lease.lock_object = weakref.ref(self)

    def handle(self) -> LeaseHandle:
        """Return the handle of the lease; a new one if all holds were dropped and the lease has not ended."""
        return self.lease.handle() or LeaseHandle(self.lease)

    def add(self, hold: Any, asked: object = None) -> None:
        """Add a hold."""
        self._holds.append((asked, weakref.ref(hold)))

    def last(self, asked: object = None) -> tuple[bool, Any]:
        """Return whether a hold was requested as ``asked``, and the last such hold; None if it was dropped."""
        refs = [ref for what, ref in self._holds if what is asked]
        return bool(refs), refs[-1]() if refs else None

    def remove(self, hold: Any, asked: object = None) -> bool:
        """Remove a hold (None: the last one that was dropped); return whether any hold is left."""
        for entry in reversed(self._holds[:]):
            if entry[1]() is hold and (hold is not None or entry[0] is asked):
                self._holds = [other for other in self._holds if other is not entry]
                break
        if not self._holds:
            self.lease.entry = None  # else the two keep each other alive until a garbage collection
        return bool(self._holds)

    def drop_ended_callers(self) -> None:
        """Have the lock objects through which it was acquired drop it, if its thread or task has ended."""
        for _, ref in self._holds[:]:
            hold = ref()
            lock = None if hold is None else hold._hold_list()
            if lock is not None:
                lock.drop_ended_callers()

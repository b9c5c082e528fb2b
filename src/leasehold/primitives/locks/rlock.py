"""The re-entrant lock: `AsyncRLock` and its sync facade `RLock`.

It belongs to the thread or the asyncio task that acquired it, across all objects of one client with the same name: a
function that locks may call another that locks the same name. The store sees one hold, whatever the depth.
"""

from __future__ import annotations

import weakref
from collections.abc import Coroutine
from typing import Any

from leasehold._engine.engine import Engine
from leasehold._engine.lease import LeaseHandle
from leasehold._engine.request import NotAcquired
from leasehold._runtimes.base import Caller
from leasehold._validate import Seconds
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.mutex import AsyncMutex, Mutex
from leasehold.primitives.locks.options import Options
from leasehold.primitives.locks.reentrancy import Entry

Reentries = weakref.WeakValueDictionary[tuple[str, int], Entry]
"""All re-entrant leases of a client, by name and by the key of the thread or task. The references are weak."""


class AsyncRLock(AsyncMutex):
    """A re-entrant lock: its task may acquire it again, and holds it until it released as often.

    Lease and other options are those of the outermost acquire. If the task ends without releasing, and nobody else has
    the hold, the watchdog stops renewing the lock and releases it.
    """

    def __init__(self, engine: Engine, name: str, options: Options, reentries: Reentries) -> None:
        super().__init__(engine, name, options)
        self._reentries = reentries

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | NotAcquired:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        caller = self._engine.runtime.me()
        entry = self._entry(caller.key)
        if entry is None:
            handle = await self._lease(limit)
            if isinstance(handle, NotAcquired):
                return handle
            entry = self._reentries[self.name, caller.key] = Entry(handle.lease, caller)
        else:
            if not entry.lease.check_deadline():
                self._drop(entry)
                raise entry.lease.error()
            handle = entry.handle()
        return self._hold(entry, handle)

    def _hold(self, entry: Entry, handle: LeaseHandle) -> AsyncHold:
        hold = AsyncHold(self._engine, handle.lease, Leaver(self, entry), self._hold_list.ref)
        entry.add(hold)
        self._hold_list.add(entry.caller, hold)
        return hold

    def _entry(self, key: int) -> Entry | None:
        entry = self._reentries.get((self.name, key))
        return entry if entry is not None and entry.caller.alive() else None

    def _drop(self, entry: Entry) -> None:
        key = (self.name, entry.caller.key)
        if self._reentries.get(key) is entry:
            del self._reentries[key]

    def _last(self, caller: Caller) -> AsyncHold | None:
        """Return the last hold of this name, through whatever object of the client it was acquired."""
        entry = self._entry(caller.key)
        if entry is None:
            return None
        hold: AsyncHold | None = entry.last()[1]
        if hold is None:  # its hold was dropped, but the lease has not ended: release it through a new hold
            hold = self._hold(entry, entry.handle())
            entry.remove(None)
        return hold


class Leaver:
    """Releases a hold, and with the last one the lease. It must not refer to the lock object, which may refer to it."""

    __slots__ = ("_engine", "_entry", "_reentries")

    def __init__(self, lock: AsyncRLock, entry: Entry) -> None:
        self._engine = lock._engine
        self._reentries = lock._reentries
        self._entry = entry

    def __call__(self, hold: AsyncHold) -> Coroutine[Any, Any, bool]:
        return self._leave(hold)

    async def _leave(self, hold: AsyncHold) -> bool:
        entry = self._entry
        if entry.remove(hold):
            if not entry.lease.check_deadline():
                raise entry.lease.error()
            return True
        key = (entry.lease.name, entry.caller.key)
        if self._reentries.get(key) is entry:
            del self._reentries[key]
        return await self._engine.release(entry.lease)


class RLock(Mutex):
    """A re-entrant lock: its thread may acquire it again, and holds it until it released as often.

    Lease and other options are those of the outermost acquire. If the thread ends without releasing, and nobody else
    has the hold, the watchdog stops renewing the lock and releases it.
    """

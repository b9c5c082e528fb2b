"""The re-entrant lock: `AsyncRLock` and its blocking face `RLock`.

It belongs to the thread or the asyncio task that acquired it, across all objects of one client with the same name: a
function that locks may call another that locks the same name. The store sees one hold, whatever the depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold.engine.acquire import Engine
from leasehold.engine.attempt import Missed
from leasehold.engine.hold import Lease
from leasehold.primitives.hold import AsyncHold
from leasehold.primitives.mutex import AsyncMutex, Mutex
from leasehold.primitives.options import Options
from leasehold.runtimes.base import Party
from leasehold.validate import Seconds


@dataclass(eq=False, slots=True)
class Entry:
    """One name held by one thread or task, as deep as it has ``holds``."""

    lease: Lease
    party: Party
    holds: list[AsyncHold] = field(default_factory=list[AsyncHold])


Reentries = dict[tuple[str, int], Entry]
"""All re-entrant holds of a client, by name and by the key of the thread or task."""


class AsyncRLock(AsyncMutex):
    """A re-entrant lock: its task may acquire it again, and holds it until it released as often.

    Lease and other options are those of the outermost acquire. If the task ends without releasing, the lock is no
    longer renewed and is released in its name.
    """

    def __init__(self, engine: Engine, name: str, options: Options, reentries: Reentries) -> None:
        super().__init__(engine, name, options)
        self._reentries = reentries

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | Missed:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        party = self._engine.runtime.me()
        entry = self._entry(party.key)
        if entry is None:
            lease = await self._lease(limit)
            if isinstance(lease, Missed):
                return lease
            lease.party = party.alive
            entry = self._reentries[self.name, party.key] = Entry(lease, party)
        elif not entry.lease.check_deadline():
            del self._reentries[self.name, party.key]
            raise entry.lease.error()
        hold = AsyncHold(self._engine, entry.lease, lambda hold: self._leave(entry, hold))
        entry.holds.append(hold)
        return hold

    def _entry(self, key: int) -> Entry | None:
        entry = self._reentries.get((self.name, key))
        return entry if entry is not None and entry.party.alive() else None

    async def _leave(self, entry: Entry, hold: AsyncHold) -> bool:
        entry.holds.remove(hold)
        if entry.holds:
            if not entry.lease.check_deadline():
                raise entry.lease.error()
            return True
        key = (self.name, entry.party.key)
        if self._reentries.get(key) is entry:
            del self._reentries[key]
        return await self._engine.release(entry.lease)

    def _last(self, party: Party) -> AsyncHold | None:
        mine = self._entry(party.key)
        return mine.holds[-1] if mine is not None else None


class RLock(Mutex):
    """A re-entrant lock: its thread may acquire it again, and holds it until it released as often.

    Lease and other options are those of the outermost acquire. If the thread ends without releasing, the lock is no
    longer renewed and is released in its name.
    """

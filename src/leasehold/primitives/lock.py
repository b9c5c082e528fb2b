"""The exclusive lock, not re-entrant: `AsyncLock` and its blocking face `Lock`."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine
from typing import Any

from leasehold.engine.acquire import Engine
from leasehold.engine.attempt import Missed
from leasehold.engine.hold import Lease
from leasehold.primitives.hold import AsyncHold, Leave
from leasehold.primitives.mutex import AsyncMutex, Mutex
from leasehold.primitives.options import Options
from leasehold.runtimes.base import Party
from leasehold.validate import Seconds

Holds = list[tuple[Party, AsyncHold]]
"""What threads or tasks hold, in the order in which they acquired it."""


class AsyncLock(AsyncMutex):
    """An exclusive lock. Not re-entrant: a second acquire by the holder waits like anyone else's.

    One object may be shared by tasks; `release` releases what the calling task acquired.

    Example:
        ```python
        async with client.lock("stock:42") as hold:
            await sell(42, fence=hold.token)
        ```

    """

    __slots__ = ("_holds", "_leave")

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        super().__init__(engine, name, options)
        self._holds: Holds = []
        self._leave = Leaver(self)

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | Missed:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        party = self._engine.runtime.me()
        lease = await self._lease(limit)
        if isinstance(lease, Missed):
            return lease
        return self._keep(party, self._hold(lease, self._leave))

    def _hold(self, lease: Lease, leave: Leave) -> AsyncHold:
        return AsyncHold(self._engine, lease, leave)

    def _keep(self, party: Party, hold: AsyncHold) -> AsyncHold:
        """Note that the thread or task holds, for its `release`."""
        self._holds.append((party, hold))
        return hold

    def _last(self, party: Party) -> AsyncHold | None:
        for owner, hold in reversed(self._holds[:]):
            # The key of a thread or task that ended is given to another.
            if owner is party or (owner.key == party.key and owner.alive()):
                return hold
        return None

    def _forget(self, hold: AsyncHold) -> None:
        for kept in self._holds[:]:
            if kept[1] is hold:
                self._holds.remove(kept)


class Leaver:
    """Releases a hold, without keeping its lock: a cycle would hide a dropped hold until a collection."""

    __slots__ = ("_lock",)

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = weakref.ref(lock)

    def __call__(self, hold: AsyncHold) -> Coroutine[Any, Any, bool]:
        lock = self._lock()
        if lock is not None:
            lock._forget(hold)
        return hold._engine.release(hold._lease)


class Lock(Mutex):
    """An exclusive lock. Not re-entrant: a second acquire by the holder waits like anyone else's.

    One object may be shared by threads; `release` releases what the calling thread acquired.

    Example:
        ```python
        with client.lock("stock:42") as hold:
            sell(42, fence=hold.token)
        ```

    """

    __slots__ = ()

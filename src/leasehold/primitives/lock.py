"""The exclusive lock, not re-entrant: `AsyncLock` and its blocking face `Lock`."""

from __future__ import annotations

import weakref

from leasehold.engine.acquire import Engine
from leasehold.engine.attempt import Missed
from leasehold.engine.hold import Lease
from leasehold.primitives.hold import AsyncHold, Leave
from leasehold.primitives.mutex import AsyncMutex, Mutex
from leasehold.primitives.options import Options
from leasehold.runtimes.base import Party
from leasehold.validate import Seconds


class AsyncLock(AsyncMutex):
    """An exclusive lock. Not re-entrant: a second acquire by the holder waits like anyone else's.

    One object may be shared by tasks; `release` releases what the calling task acquired.

    Example:
        ```python
        async with client.lock("stock:42") as hold:
            await sell(42, fence=hold.token)
        ```

    """

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        super().__init__(engine, name, options)
        self._holds: dict[int, tuple[Party, list[AsyncHold]]] = {}  # by the key of the thread or task
        self._self: weakref.ref[AsyncLock] = weakref.ref(self)

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | Missed:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        party = self._engine.runtime.me()
        lease = await self._lease(limit)
        if isinstance(lease, Missed):
            return lease
        return self._keep(party, self._hold(lease, _leaver(self._engine, self._self, party.key)))

    def _hold(self, lease: Lease, leave: Leave) -> AsyncHold:
        return AsyncHold(self._engine, lease, leave)

    def _keep(self, party: Party, hold: AsyncHold) -> AsyncHold:
        """Note that the thread or task holds, for its `release`."""
        held = self._holds.get(party.key)
        if held is None or not held[0].alive():  # the key of a thread or task that ended is given to another
            held = self._holds[party.key] = (party, [])
        held[1].append(hold)
        return hold

    def _last(self, key: int) -> AsyncHold | None:
        held = self._holds.get(key)
        return held[1][-1] if held is not None and held[1] and held[0].alive() else None

    def _forget(self, key: int, hold: AsyncHold) -> None:
        held = self._holds.get(key)
        if held is not None and hold in held[1]:
            held[1].remove(hold)
            if not held[1]:
                del self._holds[key]


def _leaver(engine: Engine, lock: weakref.ref[AsyncLock], key: int) -> Leave:
    """Make what releases a hold, without keeping the lock: a cycle would hide a dropped hold until a collection."""

    async def leave(hold: AsyncHold) -> bool:
        alive = lock()
        if alive is not None:
            alive._forget(key, hold)
        return await engine.release(hold._lease)

    return leave


class Lock(Mutex):
    """An exclusive lock. Not re-entrant: a second acquire by the holder waits like anyone else's.

    One object may be shared by threads; `release` releases what the calling thread acquired.

    Example:
        ```python
        with client.lock("stock:42") as hold:
            sell(42, fence=hold.token)
        ```

    """

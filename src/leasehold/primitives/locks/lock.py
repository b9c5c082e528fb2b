"""The exclusive lock, not re-entrant: `AsyncLock` and its blocking face `Lock`."""

from __future__ import annotations

from leasehold._engine.lease import Grip
from leasehold._engine.request import Missed
from leasehold._validate import Seconds
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.mutex import AsyncMutex, Mutex


class AsyncLock(AsyncMutex):
    """An exclusive lock. Not re-entrant: a second acquire by the holder waits like anyone else's.

    One object may be shared by tasks; `release` releases what the calling task acquired.

    Example:
        ```python
        async with client.lock("stock:42") as hold:
            await sell(42, fence=hold.token)
        ```

    """

    __slots__ = ()

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | Missed:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        party = self._engine.runtime.me()
        grip = await self._lease(limit)
        if isinstance(grip, Missed):
            return grip
        hold, kept = self._hold(grip), self._kept
        grip.lease.kept = kept.ref
        kept.add(party, hold)
        return hold

    def _hold(self, grip: Grip) -> AsyncHold:
        return AsyncHold(self._engine, grip.lease, None, self._kept.ref)


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

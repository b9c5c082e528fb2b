"""The exclusive lock, not re-entrant: `AsyncLock` and its sync facade `Lock`."""

from __future__ import annotations

from leasehold._engine.lease import LeaseHandle
from leasehold._engine.request import NotAcquired
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

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | NotAcquired:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        caller = self._engine.runtime.me()
        handle = await self._lease(limit)
        if isinstance(handle, NotAcquired):
            return handle
        hold, hold_list = self._hold(handle), self._hold_list
        handle.lease.lock_object = hold_list.ref
        hold_list.add(caller, hold)
        return hold

    def _hold(self, handle: LeaseHandle) -> AsyncHold:
        return AsyncHold(self._engine, handle.lease, None, self._hold_list.ref)


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

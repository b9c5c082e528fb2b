"""The exclusive lock, not re-entrant: `AsyncLock` and its blocking face `Lock`."""

from __future__ import annotations

from leasehold.engine.acquire import Engine, Missed
from leasehold.primitives.hold import AsyncHold
from leasehold.primitives.mutex import AsyncMutex, Mutex
from leasehold.primitives.options import Options
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
        self._holds: dict[int, list[AsyncHold]] = {}

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | Missed:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        key = self._engine.runtime.me().key
        lease = await self._lease(limit)
        if isinstance(lease, Missed):
            return lease
        hold = AsyncHold(self._engine, lease, lambda hold: self._leave(key, hold))
        self._holds.setdefault(key, []).append(hold)
        return hold

    async def _leave(self, key: int, hold: AsyncHold) -> bool:
        holds = self._holds[key]
        holds.remove(hold)
        if not holds:
            del self._holds[key]
        return await self._engine.release(hold._lease)

    def _last(self, key: int) -> AsyncHold | None:
        holds = self._holds.get(key)
        return holds[-1] if holds else None


class Lock(Mutex):
    """An exclusive lock. Not re-entrant: a second acquire by the holder waits like anyone else's.

    One object may be shared by threads; `release` releases what the calling thread acquired.

    Example:
        ```python
        with client.lock("stock:42") as hold:
            sell(42, fence=hold.token)
        ```

    """

"""aioredlock's lock on one server: a key with a time to live; its user retries after three failed tries."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold_lab.bench.subjects.base import LEASE, AsyncTurn, Scope

aioredlock: Any = import_module("aioredlock")


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._manager = aioredlock.Aioredlock([scope.url])

    async def turn(self, name: str) -> AsyncTurn:
        manager, key, held = self._manager, self._scope.key(name), list[Any]()

        async def acquire() -> object:
            while True:
                try:
                    held.append(await manager.lock(key, lock_timeout=LEASE))
                    return held[-1]
                except aioredlock.LockAcquiringError:
                    pass

        async def release() -> None:
            await manager.unlock(held.pop())

        return acquire, release

    async def refused(self, name: str) -> bool:
        try:
            await self._manager.lock(self._scope.key(name), lock_timeout=LEASE)
        except aioredlock.LockAcquiringError:
            return True
        return False

    async def close(self) -> None:
        await self._manager.destroy()


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope)

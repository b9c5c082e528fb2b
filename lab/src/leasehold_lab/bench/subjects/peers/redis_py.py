"""redis-py's Lock: a key with a time to live, polled for each 0.1 s."""

# pyright: reportUnknownMemberType=false
# redis-py annotates `from_url` in part only.

from __future__ import annotations

import redis
import redis.asyncio

from leasehold_lab.bench.subjects.base import LEASE, AsyncTurn, Scope, Turn

POOL = 50
"""Connections of the asyncio pool where there are more tasks than that; the server would refuse one for each."""


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._client = redis.Redis.from_url(scope.url)

    def turn(self, name: str) -> Turn:
        lock = self._client.lock(self._scope.key(name), timeout=LEASE)
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        return not self._client.lock(self._scope.key(name), timeout=LEASE).acquire(blocking=False)

    def close(self) -> None:
        self._client.close()


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        if scope.concurrency > POOL:
            pool = redis.asyncio.BlockingConnectionPool.from_url(scope.url, max_connections=POOL, timeout=None)
            self._client = redis.asyncio.Redis.from_pool(pool)
        else:
            self._client = redis.asyncio.Redis.from_url(scope.url)

    async def turn(self, name: str) -> AsyncTurn:
        lock = self._client.lock(self._scope.key(name), timeout=LEASE)
        return lock.acquire, lock.release

    async def refused(self, name: str) -> bool:
        return not await self._client.lock(self._scope.key(name), timeout=LEASE).acquire(blocking=False)

    async def close(self) -> None:
        await self._client.aclose()


blocking = Blocking


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope)

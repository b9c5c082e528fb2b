"""pottery's Redlock, on one server or several."""

# pyright: reportUnknownMemberType=false
# redis-py annotates `from_url` in part only.

from __future__ import annotations

from importlib import import_module
from typing import Any

import redis
import redis.asyncio

from leasehold_lab.bench.subjects.base import LEASE, AsyncTurn, Scope, Turn
from leasehold_lab.bench.subjects.peers.redis_py import POOL

pottery: Any = import_module("pottery")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._clients = {redis.Redis.from_url(url) for url in scope.urls}

    def turn(self, name: str) -> Turn:
        lock = self._lock(name)
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        return not self._lock(name).acquire(blocking=False)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _lock(self, name: str) -> Any:
        return pottery.Redlock(key=self._scope.key(name), masters=self._clients, auto_release_time=LEASE)


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
        lock = self._lock(name)
        return lock.acquire, lock.release

    async def refused(self, name: str) -> bool:
        return not await self._lock(name).acquire(blocking=False)

    async def close(self) -> None:
        await self._client.aclose()

    def _lock(self, name: str) -> Any:
        return pottery.AIORedlock(key=self._scope.key(name), masters={self._client}, auto_release_time=LEASE)


blocking = Blocking


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope)

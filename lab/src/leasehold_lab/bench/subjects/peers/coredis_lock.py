"""coredis's lock: a key with a time to live, polled for each 0.1 s."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold_lab.bench.subjects.base import LEASE, AsyncTurn, Scope
from leasehold_lab.bench.subjects.peers.redis_py import POOL

coredis: Any = import_module("coredis")


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`."""

    def __init__(self, scope: Scope, client: Any) -> None:
        self._scope = scope
        self._client = client

    async def turn(self, name: str) -> AsyncTurn:
        lock = self._client.lock(self._scope.key(name), timeout=LEASE)
        return lock.acquire, lock.release

    async def refused(self, name: str) -> bool:
        return not await self._client.lock(self._scope.key(name), timeout=LEASE, blocking=False).acquire()

    async def close(self) -> None:
        await self._client.__aexit__(None, None, None)


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    client = coredis.Redis.from_url(scope.url, max_connections=min(scope.concurrency + 1, POOL))
    await client.__aenter__()
    return Awaiting(scope, client)

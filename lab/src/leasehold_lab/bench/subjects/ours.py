"""leasehold, with its defaults."""

from __future__ import annotations

from leasehold import AsyncClient, Client
from leasehold_lab.bench.subjects.base import AsyncTurn, Scope, Turn


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._client = Client.from_url(scope.url, namespace=scope.namespace)

    def turn(self, name: str) -> Turn:
        lock = self._client.lock(name)
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        return self._client.lock(name).acquire(blocking=False) is None

    def close(self) -> None:
        self._client.close()


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`."""

    def __init__(self, scope: Scope) -> None:
        self._client = AsyncClient.from_url(scope.url, namespace=scope.namespace)

    async def turn(self, name: str) -> AsyncTurn:
        lock = self._client.lock(name)
        return lock.acquire, lock.release

    async def refused(self, name: str) -> bool:
        return await self._client.lock(name).acquire(blocking=False) is None

    async def close(self) -> None:
        await self._client.close()


blocking = Blocking


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope)

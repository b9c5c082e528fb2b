"""redlock-ng, on one server or several."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold_lab.bench.subjects.base import LEASE, AsyncTurn, Scope, Turn

redlock: Any = import_module("redlock.lock")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._client = redlock.Redlock(scope.urls)
        self._impatient = redlock.Redlock(scope.urls, retry_count=0)

    def turn(self, name: str) -> Turn:
        client, key, held = self._client, self._scope.key(name), list[Any]()

        def take() -> bool:
            lock = client.acquire(key, LEASE * 1000, blocking=True)
            held.append(lock)
            return lock is not None

        return take, lambda: client.release(held.pop())

    def refused(self, name: str) -> bool:
        return self._impatient.acquire(self._scope.key(name), LEASE * 1000) is None

    def close(self) -> None:
        """Leave the connections to the end of the process."""


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._client = redlock.AsyncRedlock(scope.urls)
        self._impatient = redlock.AsyncRedlock(scope.urls, retry_count=0)

    async def turn(self, name: str) -> AsyncTurn:
        client, key, held = self._client, self._scope.key(name), list[Any]()

        async def take() -> bool:
            lock = await client.acquire(key, LEASE * 1000, blocking=True)
            held.append(lock)
            return lock is not None

        return take, lambda: client.release(held.pop())

    async def refused(self, name: str) -> bool:
        return await self._impatient.acquire(self._scope.key(name), LEASE * 1000) is None

    async def close(self) -> None:
        """Leave the connections to the end of the process."""


blocking = Blocking


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope)

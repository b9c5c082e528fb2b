"""coredis's Lock."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from museum.port import Place, Raw, Variant

coredis: Any = import_module("coredis")
PACKAGE = "coredis"


class Awaiting:
    def __init__(self, client: Any) -> None:
        self._client = client

    def lock(self, name: str, lease: float | None) -> AwaitingLock:
        return AwaitingLock(lambda **options: self._client.lock(name, timeout=lease, **options))

    async def body(self, name: str, wait: float) -> bool:
        async with self._client.lock(name, timeout=5, blocking_timeout=wait):
            return True

    async def close(self) -> None:
        await self._client.__aexit__(None, None, None)


class AwaitingLock(Raw):
    """How long to wait is told to the lock when it is made; all other calls go to that object."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._lock: Any = None

    async def acquire(self, wait: float | None) -> bool:
        if self._lock is None:
            self._lock = self._make(blocking=wait != 0, blocking_timeout=wait or None)
        return bool(await self._lock.acquire())

    async def release(self) -> None:
        await self._lock.release()


async def awaiting(place: Place) -> Awaiting:
    client = coredis.Redis(port=place.port)
    await client.__aenter__()
    return Awaiting(client)


VARIANTS = {"asyncio": Variant(awaiting)}

"""redis-py's Lock."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from museum.port import Place, Raw, Variant

PACKAGE = "redis"


class Blocking:
    def __init__(self, place: Place) -> None:
        self._client = redis.Redis(port=place.port)

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        return BlockingLock(self._client.lock(name, timeout=lease))

    def body(self, name: str, wait: float) -> bool:
        with self._client.lock(name, timeout=5, blocking_timeout=wait):
            return True

    def close(self) -> None:
        self._client.close()


class BlockingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, wait: float | None) -> bool:
        return bool(self._lock.acquire(blocking=wait != 0, blocking_timeout=wait))

    def release(self) -> None:
        self._lock.release()

    def valid(self) -> bool:
        return bool(self._lock.owned())


class Awaiting:
    def __init__(self, place: Place) -> None:
        self._client = redis.asyncio.Redis(port=place.port)

    def lock(self, name: str, lease: float | None) -> AwaitingLock:
        return AwaitingLock(self._client.lock(name, timeout=lease))

    async def body(self, name: str, wait: float) -> bool:
        async with self._client.lock(name, timeout=5, blocking_timeout=wait):
            return True

    async def close(self) -> None:
        await self._client.aclose()


class AwaitingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def acquire(self, wait: float | None) -> bool:
        return bool(await self._lock.acquire(blocking=wait != 0, blocking_timeout=wait))

    async def release(self) -> None:
        await self._lock.release()

    async def valid(self) -> bool:
        return bool(await self._lock.owned())


VARIANTS = {"blocking": Variant(Blocking), "asyncio": Variant(Awaiting)}

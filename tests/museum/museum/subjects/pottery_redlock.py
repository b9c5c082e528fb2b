"""pottery's Redlock, on one server."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import redis
import redis.asyncio

from museum.port import Place, Raw, Variant

pottery: Any = import_module("pottery")
PACKAGE = "pottery"


def options(lease: float | None) -> dict[str, float]:
    return {} if lease is None else {"auto_release_time": lease}


class Blocking:
    def __init__(self, place: Place) -> None:
        self._client = redis.Redis(port=place.port)

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        return BlockingLock(pottery.Redlock(key=name, masters={self._client}, **options(lease)))

    def body(self, name: str, wait: float) -> bool:
        with pottery.Redlock(key=name, masters={self._client}, context_manager_timeout=wait):
            return True

    def close(self) -> None:
        self._client.close()


class BlockingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, wait: float | None) -> bool:
        if wait == 0:
            return bool(self._lock.acquire(blocking=False))
        return bool(self._lock.acquire(timeout=-1 if wait is None else wait))

    def release(self) -> None:
        self._lock.release()

    def valid(self) -> bool:
        return bool(self._lock.locked())


class Awaiting:
    def __init__(self, place: Place) -> None:
        self._client = redis.asyncio.Redis(port=place.port)

    def lock(self, name: str, lease: float | None) -> AwaitingLock:
        return AwaitingLock(pottery.AIORedlock(key=name, masters={self._client}, **options(lease)))

    async def body(self, name: str, wait: float) -> bool:
        async with pottery.AIORedlock(key=name, masters={self._client}, context_manager_timeout=wait):
            return True

    async def close(self) -> None:
        await self._client.aclose()


class AwaitingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def acquire(self, wait: float | None) -> bool:
        if wait == 0:
            return bool(await self._lock.acquire(blocking=False))
        return bool(await self._lock.acquire(timeout=-1 if wait is None else wait))

    async def release(self) -> None:
        await self._lock.release()

    async def valid(self) -> bool:
        return bool(await self._lock.locked())


VARIANTS = {"blocking": Variant(Blocking), "asyncio": Variant(Awaiting)}

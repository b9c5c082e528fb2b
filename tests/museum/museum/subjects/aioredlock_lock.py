"""aioredlock, on one server. It gives up soon, so `acquire` repeats the call. Without a lease it renews by itself."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from museum.port import Place, Raw, Variant

aioredlock: Any = import_module("aioredlock")
PACKAGE = "aioredlock"


class Awaiting:
    def __init__(self, place: Place) -> None:
        self._patient = aioredlock.Aioredlock([place.url])
        self._once = aioredlock.Aioredlock([place.url], retry_count=1)

    def lock(self, name: str, lease: float | None) -> AwaitingLock:
        return AwaitingLock(self._patient, self._once, name, lease)

    async def body(self, name: str, wait: float) -> bool:
        async with await self._patient.lock(name, lock_timeout=5):
            return True

    async def close(self) -> None:
        await self._patient.destroy()
        await self._once.destroy()


class AwaitingLock(Raw):
    def __init__(self, patient: Any, once: Any, name: str, lease: float | None) -> None:
        self._own = (patient, once, name, lease)
        self._lock: Any = None

    async def acquire(self, wait: float | None) -> bool:
        patient, once, name, lease = self._own
        until = time.monotonic() + (1e9 if wait is None else wait)
        while True:
            try:
                self._lock = await (once if wait == 0 else patient).lock(name, lock_timeout=lease)
                return True
            except aioredlock.LockAcquiringError:
                if time.monotonic() >= until:
                    return False

    async def release(self) -> None:
        await self._own[0].unlock(self._lock)

    async def valid(self) -> bool:
        return bool(await self._lock.is_locked())

    def alongside(self) -> AwaitingLock:
        return AwaitingLock(*self._own)


VARIANTS = {"asyncio": Variant(Awaiting, claim=b"EVALSHA", leave=b"EVALSHA")}

"""redlock-ng, on one server. It has no default lease: 10 s stand for one. Its own tries end soon; they are repeated."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from museum.port import Place, Raw, Variant

redlock: Any = import_module("redlock.lock")
PACKAGE = "redlock-ng"
DEFAULT = 10.0


def milliseconds(lease: float | None) -> int:
    return int((DEFAULT if lease is None else lease) * 1000)


class Blocking:
    def __init__(self, place: Place) -> None:
        self._clients = [redlock.Redlock([place.url]), redlock.Redlock([place.url], retry_count=0)]

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        return BlockingLock(*self._clients, name, milliseconds(lease))

    def body(self, name: str, wait: float) -> bool:
        with self._clients[0].lock(name, 5000):
            return True

    def close(self) -> None:
        """Leave the connections to the end of the process."""


class BlockingLock(Raw):
    def __init__(self, patient: Any, once: Any, name: str, ttl: int) -> None:
        self._own = (patient, once, name, ttl)
        self._patient, self._once, self._name, self._ttl = self._own
        self._lock: Any = None

    def acquire(self, wait: float | None) -> bool:
        until = time.monotonic() + (1e9 if wait is None else wait)
        while True:
            self._lock = (self._once if wait == 0 else self._patient).acquire(self._name, self._ttl)
            if self._lock or time.monotonic() >= until:
                return bool(self._lock)

    def release(self) -> None:
        self._patient.release(self._lock)

    def valid(self) -> bool:
        return bool(self._lock.valid)

    def alongside(self) -> BlockingLock:
        return BlockingLock(*self._own)


class Awaiting:
    def __init__(self, place: Place) -> None:
        self._clients = [redlock.AsyncRedlock([place.url]), redlock.AsyncRedlock([place.url], retry_count=0)]

    def lock(self, name: str, lease: float | None) -> AwaitingLock:
        return AwaitingLock(*self._clients, name, milliseconds(lease))

    async def body(self, name: str, wait: float) -> bool:
        async with self._clients[0].lock(name, 5000):
            return True

    async def close(self) -> None:
        """Leave the connections to the end of the process."""


class AwaitingLock(Raw):
    def __init__(self, patient: Any, once: Any, name: str, ttl: int) -> None:
        self._own = (patient, once, name, ttl)
        self._patient, self._once, self._name, self._ttl = self._own
        self._lock: Any = None

    async def acquire(self, wait: float | None) -> bool:
        until = time.monotonic() + (1e9 if wait is None else wait)
        while True:
            self._lock = await (self._once if wait == 0 else self._patient).acquire(self._name, self._ttl)
            if self._lock or time.monotonic() >= until:
                return bool(self._lock)

    async def release(self) -> None:
        await self._patient.release(self._lock)

    async def valid(self) -> bool:
        return bool(self._lock.valid)

    def alongside(self) -> AwaitingLock:
        return AwaitingLock(*self._own)


VARIANTS = {"blocking": Variant(Blocking), "asyncio": Variant(Awaiting)}

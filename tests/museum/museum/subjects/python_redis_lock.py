"""python-redis-lock's Lock. It takes whole seconds; with a lease it is set to renew itself, unless that is fixed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import redis

from museum.port import Place, Raw, Variant

redis_lock: Any = import_module("redis_lock")
PACKAGE = "python-redis-lock"


class Blocking:
    def __init__(self, place: Place) -> None:
        self._client = redis.Redis(port=place.port)

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        if lease is None:
            return BlockingLock(redis_lock.Lock(self._client, name))
        return BlockingLock(redis_lock.Lock(self._client, name, expire=int(lease), auto_renewal=True))

    def fixed(self, name: str, lease: float) -> BlockingLock:
        return BlockingLock(redis_lock.Lock(self._client, name, expire=int(lease)))

    def close(self) -> None:
        self._client.close()


class BlockingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, wait: float | None) -> bool:
        if wait == 0:
            return bool(self._lock.acquire(blocking=False))
        return bool(self._lock.acquire(timeout=wait and max(1, int(wait))))

    def release(self) -> None:
        self._lock.release()

    def valid(self) -> bool:
        return bool(self._lock.get_owner_id() == self._lock.id)


VARIANTS = {"blocking": Variant(Blocking, wakes=b"BLPOP", granted=b"+OK")}

"""sherlock's lock on Redis."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import redis

from museum.port import Place, Raw, Variant

sherlock: Any = import_module("sherlock")
PACKAGE = "sherlock"


class Blocking:
    def __init__(self, place: Place) -> None:
        self._client = redis.Redis(port=place.port)

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        options = {} if lease is None else {"expire": int(lease)}
        return BlockingLock(sherlock.RedisLock(name, client=self._client, timeout=3600, **options))

    def body(self, name: str, wait: float) -> bool:
        with sherlock.RedisLock(name, client=self._client, timeout=wait):
            return True

    def close(self) -> None:
        self._client.close()


class BlockingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, wait: float | None) -> bool:
        if wait:
            self._lock.timeout = wait
        return bool(self._lock.acquire(blocking=wait != 0))

    def release(self) -> None:
        self._lock.release()

    def valid(self) -> bool:
        return bool(self._lock.locked())


VARIANTS = {"blocking": Variant(Blocking, claim=b"EVALSHA", leave=b"EVALSHA")}

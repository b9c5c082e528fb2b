"""sherlock's Redis lock: a key with a time to live, which waiters poll every 0.1 s."""

# pyright: reportUnknownMemberType=false
# redis-py annotates `from_url` in part only.

from __future__ import annotations

from importlib import import_module
from typing import Any

import redis

from leasehold_lab.bench.subjects.base import LEASE, Scope, Turn

sherlock: Any = import_module("sherlock")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._client = redis.Redis.from_url(scope.url)

    def turn(self, name: str) -> Turn:
        lock = self._lock(name)
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        return not self._lock(name).acquire(blocking=False)

    def close(self) -> None:
        self._client.close()

    def _lock(self, name: str) -> Any:
        return sherlock.RedisLock(self._scope.key(name), client=self._client, expire=LEASE, timeout=3600)


blocking = Blocking

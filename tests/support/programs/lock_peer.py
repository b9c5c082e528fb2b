"""A process that shares one lock with others: ``KIND URL KEY LEASE_MS [ROOM]``. It answers each order with a line.

``count N`` visits the room N times under the lock; ``lock`` waits for it, ``try`` does not, ``unlock`` releases it. The
room is in Redis, at the URL ``ROOM``, or at that of the lock: a key that only one may have set at a time, a number that
each visit reads and writes back, and a list of the visits with their tokens. A peer in another language has the same
orders.

The last word of KIND may be the lock's: ``fair``, ``read``, ``write`` or ``permit``, one of `PERMITS`. Readers, and
owners of permits, are in the room together, and count by one command.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

import redis
import redis_lock
import redlock

from leasehold import AsyncClient, Client

PAUSE = 0.0005
"""Seconds between reading the number and writing it back."""

PERMITS = 3

TOGETHER = {"read": 1_000_000, "permit": PERMITS}
"""How many may be in the room at a time, by the lock's word; alone with the others."""


class Room:
    """What the lock protects."""

    def __init__(self, url: str, key: str) -> None:
        self._redis = redis.Redis.from_url(url.partition("?")[0])
        self._key = key

    def visit(self, kind: str, token: int) -> None:
        most = TOGETHER.get(kind.rpartition("-")[2])
        if most is not None:
            self._visit_together(kind, token, most)
            return
        if int(self._redis.get(f"{self._key}:inside") or 0) or not self._redis.set(f"{self._key}:room", kind, nx=True):
            say("overlap")
        seen = int(self._redis.get(f"{self._key}:count") or 0)
        time.sleep(PAUSE)
        self._redis.set(f"{self._key}:count", seen + 1)
        self._redis.rpush(f"{self._key}:log", f"{kind} {token}")
        self._redis.delete(f"{self._key}:room")

    def _visit_together(self, kind: str, token: int, most: int) -> None:
        if self._redis.incr(f"{self._key}:inside") > most or self._redis.exists(f"{self._key}:room"):
            say("overlap")
        time.sleep(PAUSE)
        self._redis.incr(f"{self._key}:count")
        self._redis.rpush(f"{self._key}:log", f"{kind} {token}")
        self._redis.decr(f"{self._key}:inside")


def say(text: str) -> None:
    print(text, flush=True)


class RedisPy:
    """The lock of redis-py."""

    def __init__(self, url: str, key: str, lease: float, shape: str) -> None:
        assert not shape
        self._client = redis.Redis.from_url(url.partition("?")[0])
        self._lock = self._client.lock(key, timeout=lease, sleep=0.01)

    def acquire(self, wait: bool) -> int | None:
        return 0 if self._lock.acquire(blocking=wait) else None

    def release(self) -> None:
        self._lock.release()


class PythonRedisLock:
    """The lock of python-redis-lock, which renews; its lease has whole seconds."""

    def __init__(self, url: str, key: str, lease: float, shape: str) -> None:
        assert not shape
        self._client = redis.StrictRedis.from_url(url.partition("?")[0])
        self._lock = redis_lock.Lock(self._client, key, expire=int(lease), auto_renewal=True)

    def acquire(self, wait: bool) -> int | None:
        return 0 if self._lock.acquire(blocking=wait) else None

    def release(self) -> None:
        self._lock.release()


class RedlockPy:
    """The lock of redlock-py on the servers of a ``redlock://`` URL."""

    def __init__(self, url: str, key: str, lease: float, shape: str) -> None:
        assert not shape
        hosts = url.partition("?")[0].removeprefix("redlock://").split(",")
        servers = [redis.StrictRedis.from_url(f"redis://{host}") for host in hosts]
        self._waits = redlock.Redlock(servers, retry_count=1_000_000, retry_delay=0.01)
        self._once = redlock.Redlock(servers, retry_count=1, retry_delay=0.001)
        self._key, self._lease = key, round(lease * 1000)
        self._held: Any = None

    def acquire(self, wait: bool) -> int | None:
        self._held = (self._waits if wait else self._once).lock(self._key, self._lease)
        return 0 if self._held else None

    def release(self) -> None:
        self._once.unlock(self._held)


class Ours:
    """The blocking client."""

    def __init__(self, url: str, key: str, lease: float, shape: str) -> None:
        self._client = Client.from_url(url)
        self._lock = lock_of(self._client, shape, key, lease)
        self._hold: Any = None

    def acquire(self, wait: bool) -> int | None:
        self._hold = self._lock.acquire(blocking=wait)
        return None if self._hold is None else self._hold.token

    def release(self) -> None:
        self._hold.release()


class OursInAsyncio:
    """The asyncio client, in a loop that runs all the time, so that its watchdog renews."""

    def __init__(self, url: str, key: str, lease: float, shape: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client = AsyncClient.from_url(url)
        self._lock = lock_of(self._client, shape, key, lease)
        self._hold: Any = None

    def acquire(self, wait: bool) -> int | None:
        self._hold = self._run(self._lock.acquire(blocking=wait))
        return None if self._hold is None else self._hold.token

    def release(self) -> None:
        self._run(self._hold.release())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def lock_of(client: Any, shape: str, key: str, lease: float) -> Any:
    """Make the lock that the last word of the kind names."""
    if shape == "permit":
        return client.semaphore(key, PERMITS, fair=False, lease=lease)
    if shape in ("read", "write"):
        sides = client.rw_lock(key, fair=False, lease=lease)
        return sides.reader() if shape == "read" else sides.writer()
    return client.lock(key, fair=shape == "fair", lease=lease)


KINDS: dict[str, Any] = {
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "redlock-py": RedlockPy,
    "ours": Ours,
    "ours-asyncio": OursInAsyncio,
}


def main() -> None:
    kind, url, key, lease, *there = sys.argv[1:]
    library, _, shape = (kind, "", "") if kind in KINDS else kind.rpartition("-")
    room, peer = Room(*there or [url], key), KINDS[library](url, key, int(lease) / 1000, shape)
    say("ready")
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "count":
            for _ in range(int(rest[0])):
                token = peer.acquire(True)
                room.visit(kind, token)
                peer.release()
            say("counted")
        elif order == "unlock":
            peer.release()
            say("released")
        else:
            token = peer.acquire(order == "lock")
            say("none" if token is None else f"held {token}")


if __name__ == "__main__":
    main()

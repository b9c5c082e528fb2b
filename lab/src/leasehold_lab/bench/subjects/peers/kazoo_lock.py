"""kazoo's Lock: a sequential node in a queue."""

from __future__ import annotations

from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn
from leasehold_lab.bench.subjects.floors.nodes import connect, folder


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. All threads share one session."""

    def __init__(self, scope: Scope) -> None:
        self._client = connect(scope.url)
        self._folder = folder(scope)

    def turn(self, name: str) -> Turn:
        lock = self._lock(name)
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        return not self._lock(name).acquire(blocking=False)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def _lock(self, name: str) -> Any:
        return self._client.Lock(f"{self._folder}/{name}")


blocking = Blocking

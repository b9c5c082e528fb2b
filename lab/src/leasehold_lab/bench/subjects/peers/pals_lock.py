"""PALs: an advisory lock of PostgreSQL, on a connection of SQLAlchemy's pool for as long as it is held."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn
from leasehold_lab.bench.subjects.peers.sqlalchemy_engine import engine

pals: Any = import_module("pals")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._locker = pals.Locker(scope.namespace, create_engine_callable=lambda: engine(scope.url))

    def turn(self, name: str) -> Turn:
        lock = self._locker.lock(name)
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        lock = self._locker.lock(name, blocking=False)
        if not lock.acquire():
            return True
        lock.release()
        return False

    def close(self) -> None:
        self._locker.engine.dispose()


blocking = Blocking

"""sqlalchemy-dlock: an advisory lock of the session, on PostgreSQL and MySQL."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn
from leasehold_lab.bench.subjects.peers.sqlalchemy_engine import engine

PATIENCE = 3600
"""Seconds to wait: MariaDB refuses the library's default, which means forever on MySQL."""

create_sadlock: Any = import_module("sqlalchemy_dlock").create_sadlock


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. Each thread has a connection."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._engine = engine(scope.url)
        self._mine = threading.local()

    def turn(self, name: str) -> Turn:
        connection = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = self._engine.connect()
        lock = create_sadlock(connection, self._scope.key(name))

        def release() -> bool:
            lock.release()
            return True

        return (lambda: lock.acquire(timeout=PATIENCE)), release

    def refused(self, name: str) -> bool:
        with self._engine.connect() as other:
            lock = create_sadlock(other, self._scope.key(name))
            if not lock.acquire(False):
                return True
            lock.release()
            return False

    def close(self) -> None:
        self._engine.dispose()


blocking = Blocking

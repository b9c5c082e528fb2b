"""portalocker: a lock on a file of this host, without lease or token."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn

portalocker: Any = import_module("portalocker")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._folder = Path(scope.folder, scope.namespace)
        self._folder.mkdir(exist_ok=True)

    def turn(self, name: str) -> Turn:
        lock = portalocker.Lock(str(self._folder / name))
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        lock = portalocker.Lock(str(self._folder / name), fail_when_locked=True)
        try:
            lock.acquire()
        except portalocker.LockException:
            return True
        lock.release()
        return False

    def close(self) -> None:
        """Leave the files to the folder's end."""


blocking = Blocking

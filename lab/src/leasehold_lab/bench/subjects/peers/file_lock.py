"""filelock: a lock on a file of this host, without lease or token."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn

filelock: Any = import_module("filelock")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        self._folder = Path(scope.folder, scope.namespace)
        self._folder.mkdir(exist_ok=True)

    def turn(self, name: str) -> Turn:
        lock = filelock.FileLock(str(self._folder / name))
        return lock.acquire, lock.release

    def refused(self, name: str) -> bool:
        try:
            filelock.FileLock(str(self._folder / name)).acquire(blocking=False)
        except filelock.Timeout:
            return True
        return False

    def close(self) -> None:
        """Leave the files to the folder's end."""


blocking = Blocking

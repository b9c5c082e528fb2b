"""filelock's FileLock: a lock of the operating system on a file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from museum.port import Place, Raw, Variant

filelock: Any = import_module("filelock")
PACKAGE = "filelock"


class Blocking:
    def __init__(self, place: Place) -> None:
        self._folder = Path(place.folder)

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        return BlockingLock(filelock.FileLock(self._folder / name))

    def body(self, name: str, wait: float) -> bool:
        with filelock.FileLock(self._folder / name, timeout=wait):
            return True

    def close(self) -> None:
        """Do nothing: the files are removed with their folder."""


class BlockingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, wait: float | None) -> bool:
        try:
            self._lock.acquire(timeout=-1 if wait is None else wait)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        self._lock.release()

    def valid(self) -> bool:
        return bool(self._lock.is_locked)


VARIANTS = {"blocking": Variant(Blocking, backend="file", leases=False)}

"""The floor of the disk: a few bytes written and forced to it, once for the acquire and once for the release."""

from __future__ import annotations

import os
from pathlib import Path

from leasehold_lab.bench.subjects.base import Scope, Turn

RECORD = b"x" * 128
"""About what a database writes to its log for one row."""


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. Only this process knows who holds what."""

    def __init__(self, scope: Scope) -> None:
        self._file = os.open(Path(scope.folder, f"{scope.namespace}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._held: set[str] = set()

    def turn(self, name: str) -> Turn:
        def take() -> bool:
            if name in self._held:
                return False
            self._held.add(name)
            self._write()
            return True

        def leave() -> None:
            self._write()
            self._held.discard(name)

        return take, leave

    def refused(self, name: str) -> bool:
        return not self.turn(name)[0]()

    def close(self) -> None:
        os.close(self._file)

    def _write(self) -> None:
        os.write(self._file, RECORD)
        getattr(os, "fdatasync", os.fsync)(self._file)  # macOS has only fsync


blocking = Blocking

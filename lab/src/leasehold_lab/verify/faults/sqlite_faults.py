"""Faults of an SQLite file that other programs use: long writes, long reads, and backups."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from leasehold_lab.verify.faults.actions import FaultContext, ServerFault

PATIENCE = 10.0
"""Seconds for which the other program waits for the write lock."""


class File:
    """A file of locks in a folder of its own, which is removed after the block."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="leasehold-verify-")
        self.path = Path(self._folder.name) / "locks.db"

    @property
    def url(self) -> str:
        """What `Client.from_url` takes."""
        return f"sqlite:{self.path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()


@contextmanager
def _open(file: File) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(file.path, timeout=PATIENCE, isolation_level=None)) as connection:
        yield connection


def _write_for(file: File, context: FaultContext, leases: float) -> None:
    with _open(file) as connection:
        _begin(connection)
        context.sleep(leases * context.lease)
        connection.execute("ROLLBACK")


def _begin(connection: sqlite3.Connection) -> None:
    """Get the write lock, in competition with many clients."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
        else:
            return


def _busy(file: File, context: FaultContext) -> None:
    _write_for(file, context, 0.5)


def _busy_long(file: File, context: FaultContext) -> None:
    _write_for(file, context, 1.5)


def _reader(file: File, context: FaultContext) -> None:
    """Keep an old snapshot open, so that the write-ahead log cannot restart."""
    with _open(file) as reader, _open(file) as other:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchone()
        context.sleep(context.lease)
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        reader.execute("ROLLBACK")


def _backup(file: File, context: FaultContext) -> None:
    with _open(file) as connection, closing(sqlite3.connect(":memory:")) as copy:
        connection.backup(copy, pages=1, sleep=0.001)


SQLITE = (
    ServerFault("server-busy", "another program writes to the file for half a lease", ("J1",), _busy),
    ServerFault(
        "server-busy-long", "another program writes to the file for one and a half leases", ("J1",), _busy_long
    ),
    ServerFault("server-reader", "another program reads the file for a lease", (), _reader),
    ServerFault("server-backup", "the file is copied while it is in use", (), _backup),
)

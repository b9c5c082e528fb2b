"""A file of SQLite that other programs use, too: they write for long, read for long, and copy it."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from leasehold_lab.verify.faults.actions import ServerFault, Spell

PATIENCE = 10.0
"""Seconds that the other program waits for its turn."""


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


def _write_for(file: File, spell: Spell, leases: float) -> None:
    with _open(file) as connection:
        _begin(connection)
        spell.sleep(leases * spell.lease)
        connection.execute("ROLLBACK")


def _begin(connection: sqlite3.Connection) -> None:
    """Get the right to write, among many who want it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
        else:
            return


def _busy(file: File, spell: Spell) -> None:
    _write_for(file, spell, 0.5)


def _busy_long(file: File, spell: Spell) -> None:
    _write_for(file, spell, 1.5)


def _reader(file: File, spell: Spell) -> None:
    """Keep an old state in view, so that the log of changes cannot begin anew."""
    with _open(file) as reader, _open(file) as other:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchone()
        spell.sleep(spell.lease)
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        reader.execute("ROLLBACK")


def _backup(file: File, spell: Spell) -> None:
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

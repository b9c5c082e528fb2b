"""Translates errors of SQLite for the caller: refused, not applied, or unknown."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported

BUSY = frozenset({5, 6, 15})
"""SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL: another process writes, or was stopped or killed while it wrote."""

IO_ERROR = 10
NOT_A_DATABASE = 26

BROKEN = frozenset({7, IO_ERROR, 11, 14, 21, NOT_A_DATABASE})
"""After these the connection is not used again: out of memory, I/O, corrupt, cannot open, misuse, no database."""

WORDS = {
    3: "permission denied",
    8: "it, or its folder, cannot be written by this user; locks need a writable file",
    11: "it is damaged; stop its users, remove it with its -wal and -shm files, and start again",
    13: "the disk is full; nothing was changed",
    14: "it cannot be opened; the folder must be writable too, for its companions -wal and -shm",
    IO_ERROR: "the disk, or the file system, failed",
    23: "access was denied",
}
"""Message and remedy by primary result code (see sqlite.org/rescode.html)."""


def code_of(error: sqlite3.Error) -> int:
    """Return the primary result code, 0 if the error did not come from SQLite itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def to_error(error: sqlite3.Error, path: Path, *, committing: bool) -> LeaseholdError:
    """Return the error for the caller.

    An error before the commit rolls back. A commit with an I/O error may have reached the disk.
    """
    code = code_of(error)
    if code == NOT_A_DATABASE:
        return Unsupported(f"{path} is not a SQLite database; name another file")
    words = WORDS.get(code, "SQLite refused")
    return StoreUnavailable(f"the lock file {path}: {words} ({error})", unknown=committing and code == IO_ERROR)

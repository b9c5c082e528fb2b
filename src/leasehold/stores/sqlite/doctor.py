"""What `leasehold doctor` reports of a SQLite store: file, file system, clock, and detection of dead processes."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from leasehold._model import Finding, Severity
from leasehold.stores.sqlite import volume
from leasehold.stores.sqlite.database import Database

SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}


def examine(database: Database, until: float) -> list[Finding]:
    """Return all findings; errors are raised as for any other operation. A missing file is not made."""

    def settings(db: sqlite3.Connection, fence: int) -> tuple[str, int]:
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
        return mode, synchronous

    path, folder = str(database.path), database.path.parent
    try:
        durability = _durability(*database.transact(settings, until, writes=False))
    except volume.NoFile:
        file = [Finding(Severity.NOTE, "sqlite file", path, "it does not exist; the first acquire makes it")]
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            meaning, remedy = "it does not exist, and this user may not make it", f"grant write access to {folder}"
            file = [Finding(Severity.ERROR, "sqlite file", path, meaning, remedy)]
    else:
        meaning = "its locks are shared by this host's processes"
        file = [Finding(Severity.OK, "sqlite file", path, meaning), durability, *_access(database.path)]
    version = Finding(Severity.OK, "sqlite version", sqlite3.sqlite_version)
    return [version, *file, _mount(database), _clock(database), _liveness(database)]


def _durability(mode: str, synchronous: int) -> Finding:
    found = f"journal_mode={mode} synchronous={SYNCHRONOUS.get(synchronous, synchronous)}"
    if mode == "wal" and synchronous >= 2:
        return Finding(Severity.OK, "sqlite durability", found, "tokens never go back, not even by a loss of power")
    return Finding(Severity.ERROR, "sqlite durability", found, "a loss of power may take tokens back", "report this")


def _mount(database: Database) -> Finding:
    mount = volume.mount_of(Path(os.path.realpath(database.path)), database.machine.mounts())
    if mount is None:
        meaning = "network file systems are not recognised on this system, and locks do not work there"
        return Finding(Severity.NOTE, "file system", "unknown", meaning, "keep the file on a local disk")
    found = f"{mount.kind} at {mount.point}"
    if mount.remote:
        meaning = "allowed by allow_network=1; two machines that use the file have no mutual exclusion"
        return Finding(Severity.WARNING, "file system", found, meaning, "use a local disk, or a server such as redis:")
    return Finding(Severity.OK, "file system", found)


def _access(path: Path) -> list[Finding]:
    found = os.stat(path)
    mode = f"{found.st_mode & 0o777:03o}"
    findings = [Finding(Severity.OK, "permissions", mode, "its owner alone reads and takes locks")]
    if found.st_mode & 0o022:
        meaning = "other users can take, break and forge locks"
        findings = [Finding(Severity.WARNING, "permissions", mode, meaning, f"chmod 600 {path}")]
    elif found.st_mode & 0o044:
        meaning = "other users can read names, owners and what is said of them"
        findings = [Finding(Severity.NOTE, "permissions", mode, meaning, f"chmod 600 {path}")]
    if found.st_nlink > 1:
        meaning = "under another name it would have other -wal and -shm files, and be damaged"
        findings.append(Finding(Severity.WARNING, "hard links", str(found.st_nlink), meaning, "remove the other links"))
    return findings


def _clock(database: Database) -> Finding:
    machine = database.machine
    found = f"boot {machine.boot()}, clock offset {machine.clock() or 'none'}"
    return Finding(Severity.OK, "boot and clock", found, "leases count on the boot-time clock; a boot voids them")


def _liveness(database: Database) -> Finding:
    me = database.machine.process()
    if me.started and me.pids:
        meaning = "a holder whose process died is noticed in under a second, from inside the same pid namespace"
        return Finding(Severity.OK, "process liveness", f"by start time, in {me.pids}", meaning)
    meaning = "a dead holder's lock is freed early only while no other process has its number; else by its lease"
    return Finding(Severity.NOTE, "process liveness", "by process number only", meaning)

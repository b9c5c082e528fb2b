"""One connection to the file: opened when first needed, checked, and used for one transaction at a time.

Theory of operation
-------------------
* Every change is one ``BEGIN IMMEDIATE`` transaction: a deferred one that reads first can fail with BUSY, however long
  it waits. We wait for other writers ourselves, for a bounded time (see `busy_wait`): SQLite sleeps up to 100 ms.
* ``synchronous=FULL`` in WAL mode: a granted token survives a loss of power.
* Times in the file belong to one boot and one clock. A process that finds another boot voids all holders and entries,
  but only if no other process has the file open. After a real boot there is none. So a machine or container that merely
  has another identity is detected. Each transaction checks the identity again.
* A fork copies SQLite's own record of its file locks, but not the locks. A child that opens the file anew would believe
  that it has them, and its commits could vanish. So the connection is closed before a fork and opened again after it. A
  child that inherited an open connection nevertheless refuses to use that file.
* If the file was deleted or replaced, the connection would use the old file, and new clients the new one. So each
  transaction compares the file at the path. The same applies to the companions (``-wal`` and ``-shm``): two clients
  with the same file and different indexes of its log do not see each other's locks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from leasehold._runtimes.clock import boottime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.sqlite import failures, volume
from leasehold.stores.sqlite.busy_wait import Backoff, WriterYield, end_of_attempt
from leasehold.stores.sqlite.machine import Machine

try:
    import ctypes  # here, for a forked child must not import
except ImportError:  # some builds of Python lack it
    ctypes = None  # type: ignore[assignment]

T = TypeVar("T")

OLDEST_SQLITE = (3, 24, 0)
"""The first with ``ON CONFLICT DO UPDATE``."""

APPLICATION = 0x4C534844  # "LSHD"
LAYOUT = 2

CLOCK = "SELECT boot, clock, fence FROM host"

LARGEST_LOG = 16 << 20
"""Bytes of the write-ahead log above which a writer empties it before another may write.

SQLite begins to copy the log into the file at 4 MiB, while others write. If they never pause, the copy never ends.
"""

FORK_PATIENCE = 5.0
"""Seconds that a fork waits for a transaction of another thread to end."""


class Database:
    """See the top of this file. Safe to use from any thread."""

    def __init__(self, path: Path, machine: Machine, *, allow_network: bool) -> None:
        self.path = path
        self._where = str(path)
        self.machine = machine
        self.allow_network = allow_network
        self._mutex = threading.Lock()
        self._backoff = Backoff()
        self._writer_yield = WriterYield()
        self._connection: sqlite3.Connection | None = None
        self._file: volume.Identity | None = None
        self._alongside = ("", "")
        self._files: tuple[volume.Identity | None, ...] = ()  # of the connection: the database and its companions
        self._clock = ("", "")  # boot, and the offset of its clock
        self._pid = 0
        self._closed = False
        self._held_for_fork = False
        _databases.add(self)

    def transact(self, work: Callable[[sqlite3.Connection, int], T], until: float, *, writes: bool = True) -> T:
        """Run ``work(connection, fence)`` in one transaction, which must begin before ``until``; return its result.

        ``fence`` is the highest token of all dropped names. An error of ``work`` rolls everything back.

        Raises:
            NoFile: there is no file, and ``writes`` is False.
            Busy: other processes write. Retry until ``until``; other calls run in between.
            StoreUnavailable: it failed, or its outcome is unknown (``unknown``).
            Unsupported: locks do not work with this file.
        """
        with self._mutex:
            return self._transact(work, end_of_attempt(until), writes=writes)

    def _transact(self, work: Callable[[sqlite3.Connection, int], T], ends: float, *, writes: bool) -> T:
        committing = False
        try:
            connection, files = self._ready(ends, make=writes)
            if writes:
                self._writer_yield.give_way(files.touched)
            try:
                self._begin(connection, ends, "IMMEDIATE" if writes else "DEFERRED")
                self._writer_yield.begin()
                fence = self._check_clock(connection, ends)
                self._backoff.reset()
                result = work(connection, fence)
                committing = True
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
            if writes:
                self._writer_yield.end()
                if files.log > LARGEST_LOG:
                    with suppress(sqlite3.Error):  # the commit is done; the next transaction meets the error
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            if failures.code_of(error) in failures.BROKEN:
                self._drop()
            raise failures.to_error(error, self.path, committing=committing) from error
        return result

    def close(self) -> None:
        """Close the connection. Further transactions are refused."""
        with self._mutex:
            self._closed = True
            self._drop()

    # --- opening -----------------------------------------------------------------------------------------------

    def _ready(self, ends: float, *, make: bool) -> tuple[sqlite3.Connection, volume.Files]:
        if self._closed:
            raise StoreUnavailable(f"the store of {self.path} is closed")
        if self._connection is not None and self._pid != os.getpid():
            self._inherit()
        found = volume.files(self._where, self._alongside)
        if self._connection is not None and found.which != self._files:
            self._drop()  # holders in the old file discover the loss at the next renewal
        if self._connection is None:
            self._connection = self._open(ends, make=make)
            self._alongside = volume.companions(self.path)
            found = volume.files(self._where, self._alongside)
            self._files = found.which
        return self._connection, found

    def _open(self, ends: float, *, make: bool) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise Unsupported(f"SQLite locks need SQLite {oldest} or newer; this Python has {sqlite3.sqlite_version}")
        self._clock = (self.machine.boot(), self.machine.clock())
        self._file = volume.prepare(self.path, self.machine.mounts(), allow_network=self.allow_network, make=make)
        if self._file in _inherited:
            raise StoreUnavailable(
                f"this process was forked while {self.path} was in use in a way that could not be prepared for; use "
                "multiprocessing's spawn method, or fork before the first use"
            )
        self._pid = os.getpid()
        while True:
            connection = _connect(self.path)
            try:
                self._set_up(connection, ends)
                if self._same_boot(connection, ends):
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
            self._take_over(ends)

    def _set_up(self, connection: sqlite3.Connection, ends: float) -> None:
        layout = self._retry(connection, "PRAGMA user_version", ends)[0]
        tables = self._retry(connection, "SELECT count(*) FROM sqlite_master", ends)[0]
        application = self._retry(connection, "PRAGMA application_id", ends)[0]  # last: another may be creating it
        new = not application and not layout and not tables
        if not new and application != APPLICATION:
            raise Unsupported(f"{self.path} is a database of another application; name another file")
        if layout > LAYOUT:
            raise Unsupported(
                f"{self.path} has layout {layout}, made by a newer leasehold; this one knows {LAYOUT}: upgrade it"
            )
        if 0 < layout < LAYOUT:
            raise Unsupported(f"{self.path} has layout {layout}, of a version before 0.1: stop its users and remove it")
        mode = self._retry(connection, "PRAGMA journal_mode=WAL", ends)[0]
        if mode != "wal":
            raise Unsupported(f"{self.path}: write-ahead logging does not work on this file system; use a local one")
        connection.execute("PRAGMA synchronous=FULL")
        if new:
            self._create(connection, ends)

    def _create(self, connection: sqlite3.Connection, ends: float) -> None:
        try:
            self._begin(connection, ends, "IMMEDIATE")
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:  # otherwise another process was faster
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute("INSERT INTO host VALUES (1, ?, ?, 0)", self._clock)
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                connection.execute(f"PRAGMA user_version={LAYOUT}")
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise

    # --- the clock to which the times belong -------------------------------------------------------------------

    def _same_boot(self, connection: sqlite3.Connection, ends: float) -> bool:
        boot, clock, _ = self._retry(connection, CLOCK, ends)
        if boot == self._clock[0] and clock != self._clock[1]:
            raise Unsupported(
                f"{self.path} is in use under another time namespace, whose boot-time clock is offset from this one "
                f"(there {clock or 0}, here {self._clock[1] or 0}): run both with the same offset, or give each "
                "its own file"
            )
        return bool(boot == self._clock[0])

    def _check_clock(self, connection: sqlite3.Connection, ends: float) -> int:
        boot, clock, fence = self._retry(connection, CLOCK, ends)  # the first read: it may be busy
        if (boot, clock) != self._clock:
            raise Unsupported(f"{self.path} was taken over by a machine of another boot; it serves one machine only")
        return int(fence)

    def _take_over(self, ends: float) -> None:
        """Void all holders, entries and delays of an earlier boot; or pause, while other processes have the file open.

        No connection is open during a pause: it would block another process that tries the same.
        """
        try:
            self._void_all(ends)
        except sqlite3.Error as error:
            if failures.code_of(error) not in failures.BUSY:
                raise
            self._backoff.try_again(
                ends,
                error,
                f"{self.path} was last used under another boot, and something still has it open: another machine, "
                "a container with a boot identity of its own, or a database tool; it serves one machine only",
            )

    def _void_all(self, ends: float) -> None:
        connection = _connect(self.path)
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # before the first read: then it locks all others out
            connection.execute("BEGIN IMMEDIATE")
            if not self._same_boot(connection, ends):
                now = int(boottime() * 1e9)
                connection.execute("DELETE FROM entry")
                connection.execute("UPDATE name SET blocked_until = 0, used = ?, holder = ''", (now,))
                connection.execute("UPDATE cell SET expires = ? + ttl", (now,))
                connection.execute("UPDATE host SET boot = ?, clock = ?", self._clock)
            connection.execute("COMMIT")
        finally:
            connection.close()

    # --- transactions ------------------------------------------------------------------------------------------

    def _begin(self, connection: sqlite3.Connection, ends: float, how: str) -> None:
        if connection.in_transaction:  # an interrupt came between a statement and its end
            _roll_back(connection)
        self._retry(connection, f"BEGIN {how}", ends)

    def _retry(self, connection: sqlite3.Connection, statement: str, ends: float) -> Any:
        """Execute, and retry while the file is busy; return the first row, if there is one."""
        while True:
            try:
                return connection.execute(statement).fetchone()
            except sqlite3.OperationalError as error:
                if failures.code_of(error) not in failures.BUSY:
                    raise
                if self._backoff.is_long():
                    volume.mark(self.path)
                self._backoff.try_again(ends, error, f"the lock file {self.path} is busy: another process writes")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- forks -------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close the connection, and keep it closed until the fork is over."""
        self._held_for_fork = self._mutex.acquire(timeout=FORK_PATIENCE)
        if self._held_for_fork:
            self._drop()

    def after_fork_in_parent(self) -> None:
        """Allow connections again."""
        if self._held_for_fork:
            self._held_for_fork = False
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Start anew. Doing it twice is harmless."""
        self._mutex = threading.Lock()
        self._held_for_fork = False
        if self._connection is not None and self._pid != os.getpid():
            self._inherit()

    def _inherit(self) -> None:
        """Keep the parent's connection unused and open: closing it would remove locks and companions of others."""
        connection, self._connection = self._connection, None
        if connection is not None and self._file is not None:
            _inherited[self._file] = connection
            if ctypes is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # not even at the end of the interpreter


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: dict[volume.Identity, sqlite3.Connection] = {}


def _connect(path: Path) -> sqlite3.Connection:
    # rw: a file that vanished meanwhile is not created again, with wider access
    where = f"file:{quote(os.path.realpath(path))}?mode=rw"
    return sqlite3.connect(where, uri=True, timeout=0, isolation_level=None, check_same_thread=False)


def _statements() -> list[str]:
    text = files("leasehold.stores.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")
    bare = "\n".join(line.partition("--")[0] for line in text.splitlines())
    return [statement for statement in bare.split(";") if statement.strip()]


SCHEMA = _statements()  # read with the module: a first acquire imports nothing


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _each(hook: Callable[[Database], None]) -> Callable[[], None]:
    def run_hooks() -> None:
        for database in list(_databases):
            hook(database)

    return run_hooks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(Database.before_fork),
        after_in_parent=_each(Database.after_fork_in_parent),
        after_in_child=_each(Database.after_fork_in_child),
    )

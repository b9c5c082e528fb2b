"""A lock of the database session of a user's own connection, for work that is longer than one transaction: migrations.

Theory of operation:

* PostgreSQL's `pg_advisory_lock` and MySQL's `GET_LOCK` belong to the session: a commit does not end them. The server
  frees them when the session ends, so a killed process leaves nothing behind.
* A waiter on PostgreSQL polls, between its transactions. A statement that waits in the server has a snapshot, and
  `CREATE INDEX CONCURRENTLY` of the migration waits for all older snapshots: the two would wait for each other.
* A waiter on MySQL waits in `GET_LOCK`, in slices. It has no snapshot and no metadata lock there.
* A pooler may run each transaction in another session, so a lock of the session protects nothing behind it. It is
  detected: the process id that it reports is not that of the backend. Galera's nodes do not share `GET_LOCK`.
* Names are the same as those of clients with ``mode=session``, so both exclude each other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from leasehold import _validate
from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, LeaseLost, StoreUnavailable, Unsupported
from leasehold.guards.connection import Statement, Statements, dialect_of, run
from leasehold.stores._sql.advisory_key import key_of
from leasehold.stores.mysql.session_statements import lock_name

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.5

SLICE = 1
"""Seconds that MySQL waits for a lock in one statement; a driver's limit for an answer is longer."""

ERRORS = ("Error", "DBAPIError")
"""Base classes of all errors of a database: DB-API's name, which Django has, too, and SQLAlchemy's."""

POOLED = (
    "a connection pooler is in front of the server, which may run each transaction in another session, so a lock of "
    "the session protects nothing: connect to the server itself, take the lock on another store, or, if the pooler "
    "keeps a session for each client (pool_mode=session), say so by pooler='session'"
)

_PG_KEY = "locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = {}::bigint"
_PG_HOLDER = f"""
    SELECT 'database session ' || a.pid || coalesce(' from ' || host(a.client_addr), '')
    || coalesce(', since ' || date_trunc('second', a.backend_start), '')
    FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE granted AND {_PG_KEY}
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """The name of a lock as the server knows it: a number on PostgreSQL, a text on MySQL and MariaDB."""

    name: str
    key: int | str

    def try_once(self, wait: int = 0) -> Statements[bool]:
        """Try to acquire it; MySQL waits for so many seconds, PostgreSQL never."""
        if isinstance(self.key, int):
            return bool((yield Statement("SELECT pg_try_advisory_lock({}::bigint)", (self.key,))).rows[0][0])
        (found,) = (yield Statement("SELECT GET_LOCK({}, {})", (self.key, wait))).rows[0]
        if found is None:
            raise StoreUnavailable(
                f"could not acquire {self.name!r}: GET_LOCK returned NULL, because an operator ended the wait or the "
                "server is out of memory; look at its log",
                name=self.name,
            )
        return bool(found)

    def release(self) -> Statements[bool]:
        """Release it; return whether this session had it.

        Raises:
            LeaseLost: an error of the database, as when this session has ended.
        """
        text = "SELECT pg_advisory_unlock({}::bigint)" if isinstance(self.key, int) else "SELECT RELEASE_LOCK({})"
        try:
            return bool((yield Statement(text, (self.key,))).rows[0][0])
        except Exception as error:
            why = _why(error)
            raise LeaseLost(
                f"{self.name!r} could not be released: {why}; if its session ended before its block did, the block may "
                "have overlapped another one",
                name=self.name,
            ) from error

    def holder(self) -> Statements[str]:
        """Describe the session that has it; empty if none has."""
        text = _PG_HOLDER if isinstance(self.key, int) else "SELECT concat('database connection ', IS_USED_LOCK({}))"
        rows = (yield Statement(text, (self.key,))).rows
        return str(rows[0][0]) if rows and rows[0][0] is not None else ""


def lock_on(connection: Any, name: str, *, namespace: str = "default", pooler: str = "") -> Statements[AdvisoryLock]:
    """Return the lock of a name on the server of a connection, which is asked for what the lock depends on.

    Raises:
        TypeError: the connection is to another database than PostgreSQL, MySQL or MariaDB.
        Unsupported: a pooler or Galera would make the lock worthless.
    """
    _validate.name(namespace, "namespace")
    _validate.name(name)
    if pooler not in ("", "session"):
        raise ValueError(f"pooler must be 'session', or left out, not {pooler!r}")
    match dialect_of(connection):
        case "postgresql":
            (backend,) = (yield Statement("SELECT pg_backend_pid()")).rows[0]
            if not pooler and _reported_pid(connection) not in (None, backend):
                raise Unsupported(POOLED)
            return AdvisoryLock(name, key_of(namespace, name))
        case "mysql":
            rows = (yield Statement("SHOW VARIABLES LIKE 'wsrep_on'")).rows
            if rows and str(rows[0][1]).upper() == "ON":
                raise Unsupported(
                    "the database is a node of a Galera cluster, whose nodes do not share GET_LOCK: take the lock on "
                    "another store"
                )
            database = (yield Statement("SELECT DATABASE()")).rows[0][0] or ""
            return AdvisoryLock(name, lock_name(database, (namespace.encode(), name.encode())))
        case other:
            raise TypeError(
                f"a lock of the session needs PostgreSQL, MySQL or MariaDB, not {other or 'this database'}: take it on "
                "another store"
            )


def _reported_pid(connection: Any) -> int | None:
    """Return the process id that the server reported at the start, None if the driver does not say it."""
    raw = getattr(connection, "connection", connection)  # that of SQLAlchemy's pool; Django's is the driver's
    raw = getattr(raw, "driver_connection", raw)
    ask = getattr(raw, "get_server_pid", None)  # asyncpg
    return ask() if ask is not None else getattr(getattr(raw, "info", None), "backend_pid", None)


@contextmanager
def session_lock(
    connection: Any,
    name: str,
    *,
    namespace: str = "default",
    timeout: Seconds | None = None,
    pooler: str = "",
    settle: Callable[[], None] = lambda: None,
) -> Generator[None, None, None]:
    """Hold a lock of the session of a blocking ``connection``, which is not in a transaction, while a block runs.

    Args:
        connection: Django's connection, or one of SQLAlchemy or psycopg.
        name: 1 to 512 bytes of UTF-8.
        namespace: names of different namespaces never meet.
        timeout: seconds to wait at most; None waits for ever, 0 does not wait.
        pooler: ``session`` says that a pooler keeps each session for one client.
        settle: ends the transaction that a statement began by itself; no transaction is open while it waits.

    Raises:
        AcquireTimeout: another session has the lock; the message describes it.
        StoreUnavailable: the server ended or failed while this process waited.
        Unsupported: a pooler or Galera would make the lock worthless.
        LeaseLost: at the end of the block: the session ended before, so the block may have overlapped another one; or
            the database failed, so that nobody knows.
    """
    left = _validate.timeout(timeout)
    ask = partial(_ask, connection, settle)
    lock: AdvisoryLock = ask(lock_on(connection, name, namespace=namespace, pooler=pooler))
    perhaps = True
    try:
        try:
            _acquire(lock, ask, left)
        except AcquireTimeout:
            perhaps = False
            raise
        yield
        kept = ask(lock.release())
    except BaseException:  # also an interrupt right after the lock was acquired, or right before its release
        if perhaps and not getattr(connection, "invalidated", False):  # SQLAlchemy's would open another session
            with suppress(Exception):  # a session that has ended has freed it
                ask(lock.release())
        raise
    if not kept:
        raise LeaseLost(
            f"the session that held {name!r} ended before its block did: the block may have overlapped another one",
            name=name,
        )


def _why(error: Exception) -> str:
    """Return the first line of a database's error; raise one of ours, or of a signal handler."""
    if not any(cls.__name__ in ERRORS for cls in type(error).__mro__):
        raise error
    return (str(error).splitlines() or [type(error).__name__])[0]


def _ask(connection: Any, settle: Callable[[], None], statements: Statements[Any]) -> Any:
    try:
        answer = run(connection, statements)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            settle()
        raise
    settle()
    return answer


def _acquire(lock: AdvisoryLock, ask: Callable[[Statements[Any]], Any], left: float | None) -> None:
    try:
        _wait(lock, ask, left)
    except Exception as error:
        why = _why(error)
        raise StoreUnavailable(
            f"could not acquire {lock.name!r}: the database failed while this process waited for the lock: {why}; "
            "nothing was done under the lock: try again when the database answers",
            name=lock.name,
        ) from error


def _wait(lock: AdvisoryLock, ask: Callable[[Statements[Any]], Any], left: float | None) -> None:
    began, pause = time.monotonic(), FIRST_PAUSE
    while not ask(lock.try_once()):
        waited = time.monotonic() - began
        if left is not None and waited >= left:
            holder = ask(lock.holder())
            raise AcquireTimeout(
                f"could not acquire {lock.name!r} within {left:g} s: held by "
                f"{holder or 'another session'}; if that one is stuck, end it",
                name=lock.name,
                waited=waited,
                held_by=holder or None,
            )
        rest = pause * random.uniform(0.5, 1.0)
        if isinstance(lock.key, int):
            time.sleep(rest if left is None else min(rest, left - waited))
            pause = min(pause * 1.5, LONGEST_PAUSE)
        elif left is not None and left - waited < SLICE:
            time.sleep(min(rest, left - waited))
        elif ask(lock.try_once(SLICE)):
            return

"""Locks that belong to the transaction of a SQLAlchemy session: `transaction_lock` and `async_transaction_lock`.

The call acquires the lock, and the commit or rollback of the session releases it, even if the process dies. So the
writes of the transaction are visible before the next one gets the lock.

* PostgreSQL has such locks (`leasehold.postgres`). A rollback to a savepoint releases what was acquired after it.
* MySQL and MariaDB have none. There it is a lock of the database session (`GET_LOCK`), which is released when the
  session gives its connection back to the pool: right after the commit or rollback, also by `close`. Savepoints do not
  release it. It depends on no code of the caller, because the pool reports each connection that comes back.
* Others are refused, with the reason.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from leasehold import _validate
from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, Unsupported
from leasehold.guards.connection import Statement, Statements, arun, run
from leasehold.integrations._common.advisory import SLICE, AdvisoryLock, lock_on
from leasehold.postgres import async_transaction_lock as on_postgres_async
from leasehold.postgres import transaction_lock as on_postgres

__all__ = ["async_transaction_lock", "transaction_lock"]

AnySession: TypeAlias = Session | scoped_session[Any]
AnyAsyncSession: TypeAlias = AsyncSession | async_scoped_session[Any]

HELD = "leasehold.transaction_locks"
"""Where the pool's record of a connection has the locks to release, one entry for each acquire."""

POLL = 0.05
"""Seconds between two tries, where less than a second is left: GET_LOCK counts in whole seconds."""


def transaction_lock(
    session: AnySession | Connection,
    name: str,
    *,
    namespace: str = "default",
    timeout: Seconds | None = None,
    shared: bool = False,
) -> None:
    """Lock ``name`` to the end of the transaction that ``session`` is in, or begins with it.

    Args:
        session: a session; on PostgreSQL also a connection.
        name: 1 to 512 bytes of UTF-8.
        namespace: names of different namespaces never meet.
        timeout: seconds to wait at most; None waits for ever, 0 does not wait.
        shared: together with other shared locks of the name; else exclusive. On PostgreSQL only.

    Raises:
        AcquireTimeout: another transaction has it. Yours is unchanged, and may continue.
        RuntimeError: the connection commits each statement (``AUTOCOMMIT``).
        Unsupported: the transaction reads from a snapshot that may be older than the lock (use READ COMMITTED), or the
            database cannot promise it.
    """
    connection = session if isinstance(session, Connection) else session.connection()
    if connection.dialect.name == "postgresql":
        return on_postgres(connection, name, namespace=namespace, timeout=timeout, shared=shared)
    _require_mysql(connection, session, shared)
    run(connection, _on_mysql(connection, name, namespace, _validate.timeout(timeout)))
    return None


async def async_transaction_lock(
    session: AnyAsyncSession | AsyncConnection,
    name: str,
    *,
    namespace: str = "default",
    timeout: Seconds | None = None,
    shared: bool = False,
) -> None:
    """Lock ``name`` to the end of the transaction of an asyncio ``session``. As `transaction_lock`."""
    mine = session() if isinstance(session, async_scoped_session) else session
    connection = mine if isinstance(mine, AsyncConnection) else await mine.connection()
    if connection.dialect.name == "postgresql":
        return await on_postgres_async(connection, name, namespace=namespace, timeout=timeout, shared=shared)
    inner = connection.sync_connection
    assert inner is not None  # it is open
    _require_mysql(inner, mine.sync_session if isinstance(mine, AsyncSession) else mine, shared)
    return await arun(connection, _on_mysql(inner, name, namespace, _validate.timeout(timeout)))


def _require_mysql(connection: Connection, session: Any, shared: bool) -> None:
    """Refuse what MySQL and MariaDB cannot do, and all other databases."""
    dialect = connection.dialect.name
    if dialect == "sqlite":
        raise Unsupported(
            "SQLite has no locks in a transaction but that of the whole file: begin the transaction with BEGIN "
            "IMMEDIATE, which one transaction at a time can do, or use client.lock() around it"
        )
    if dialect not in ("mysql", "mariadb"):
        raise Unsupported(f"transaction_lock knows PostgreSQL, MySQL and MariaDB, not {dialect}: use client.lock()")
    if shared:
        raise Unsupported("MySQL and MariaDB have no shared locks of this kind: use client.rw_lock(), or PostgreSQL")
    if not isinstance(session, Session | scoped_session) or isinstance(session.get_bind(), Connection):
        raise TypeError(
            "on MySQL and MariaDB transaction_lock needs a session that is bound to an engine: the lock is released "
            "when the session gives its connection back to the pool, and a connection of yours may stay open for longer"
        )


def _on_mysql(connection: Connection, name: str, namespace: str, left: float | None) -> Statements[None]:
    facts = {str(key): str(value) for key, value in (yield Statement(_SETTINGS)).rows}
    if facts.get("autocommit", "OFF") == "ON":
        raise RuntimeError("transaction_lock needs a transaction, and this connection commits each statement: leave "
                           "out isolation_level='AUTOCOMMIT'")  # fmt: skip
    isolation = facts.get("transaction_isolation") or facts.get("tx_isolation", "")
    if isolation == "REPEATABLE-READ":
        raise Unsupported(
            "this transaction is REPEATABLE READ: it may read from a snapshot that is older than the lock, and would "
            "not see the writes of the previous holder; use create_engine(…, isolation_level='READ COMMITTED')"
        )
    lock = yield from lock_on(connection, name, namespace=namespace)
    _release_at_checkin(connection, lock)
    yield from _wait(lock, left)


_SETTINGS = "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation', 'autocommit')"


def _wait(lock: AdvisoryLock, left: float | None) -> Statements[None]:
    while not (yield from lock.try_once(SLICE if left is None or left >= SLICE else 0)):
        if left is not None and left <= 0:
            holder = yield from lock.holder()
            raise AcquireTimeout(
                f"could not acquire {lock.name!r} in time: held by {holder or 'another transaction'}",
                name=lock.name,
                held_by=holder or None,
            )
        if left is not None and left < SLICE:
            yield Statement("SELECT SLEEP({})", (min(POLL, left),))
            left -= min(POLL, left)
        elif left is not None:
            left -= SLICE


def _release_at_checkin(connection: Connection, lock: AdvisoryLock) -> None:
    """Release the lock when the connection comes back to the pool; noted before the lock is acquired."""
    pool = connection.engine.pool
    if not event.contains(pool, "checkin", _release):
        event.listen(pool, "checkin", _release)
    connection.info.setdefault(HELD, []).append(lock.key)


def _release(driver_connection: Any, record: Any) -> None:
    keys = record.info.pop(HELD, None)
    if not keys or driver_connection is None:  # the latter: it was invalidated
        return
    try:
        cursor = driver_connection.cursor()
        try:
            for key in keys:
                cursor.execute("SELECT RELEASE_LOCK(%s)", (key,))
                cursor.fetchall()
        finally:
            cursor.close()
    except Exception:  # the transaction has ended, and so does the database session with its locks
        record.invalidate()
    except BaseException:
        with suppress(Exception):
            record.invalidate()
        raise

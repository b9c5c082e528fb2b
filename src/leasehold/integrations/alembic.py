"""One of several containers carries out `alembic upgrade`; the others wait, and then find it done: `migration_lock`.

The lock is around the transaction: `run_migrations` reads the present revision after the lock was acquired, and the
commit comes before its release. By default it belongs to the database session that migrates:

* PostgreSQL: an advisory lock, MySQL and MariaDB: `GET_LOCK`; see `_common.advisory`. No tables, no settings.
* SQLite: a lock of the file ``<database>.migration-lock``, for the processes of one host.
* Any other database, or a pooler in between: on a store, by a client or a URL.

If the process dies, the session ends, and the next waiter begins: after a rollback, where DDL is transactional.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, overload

from leasehold import Client, Hold, _validate
from leasehold._validate import Seconds
from leasehold.integrations._common.advisory import session_lock
from leasehold.integrations._common.file_lock import file_lock

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["migration_lock"]


@overload
def migration_lock(
    on: Client | str, name: str = ..., *, namespace: str = ..., timeout: Seconds | None = ..., pooler: str = ...
) -> AbstractContextManager[Hold]: ...


@overload
def migration_lock(
    on: Connection, name: str = ..., *, namespace: str = ..., timeout: Seconds | None = ..., pooler: str = ...
) -> AbstractContextManager[None]: ...


def migration_lock(
    on: Connection | Client | str,
    name: str = "alembic",
    *,
    namespace: str = "default",
    timeout: Seconds | None = 600.0,
    pooler: str = "",
) -> AbstractContextManager[Hold | None]:
    """Let one process at a time migrate: put it around `context.begin_transaction()` in ``env.py``.

    Args:
        on: the connection that migrates, a blocking client, or the URL of a store. In an asyncio ``env.py`` it is the
            connection that `run_sync` passes on.
        name: what is migrated. Sets of migrations that may run at the same time need different names.
        namespace: names of different namespaces never meet; with a client, its own namespace counts.
        timeout: seconds to wait at most for the others; None waits for ever, 0 does not wait.
        pooler: ``session`` says that a pooler in front of PostgreSQL keeps a session for each client.

    Returns:
        A context manager. With a client or a URL it returns the hold, whose lease is renewed.

    Raises:
        AcquireTimeout: another process is still migrating; the message says which one.
        StoreUnavailable: the server of the lock failed while this process waited; it has migrated nothing.
        RuntimeError: the connection is in a transaction, and the lock would be released before its commit.
        Unsupported: a pooler or Galera would make the lock worthless.
        LeaseLost: at the end: the lock was lost before, so another process may have migrated at the same time.

    Example:
        <!-- not run: it is part of an env.py -->
        ```python
        with migration_lock(connection), context.begin_transaction():
            context.run_migrations()
        ```
    """
    if isinstance(on, str):
        return _on_url(on, name, namespace, timeout)
    if isinstance(on, Client):
        return on.lock(name, timeout=timeout)
    if not hasattr(on, "exec_driver_sql") or hasattr(on, "run_sync"):
        raise TypeError(
            f"migration_lock needs the blocking connection that migrates, a blocking Client or a URL, not "
            f"{type(on).__name__}; in an asyncio env.py, use it in the function that run_sync calls"
        )
    if on.in_transaction():
        raise RuntimeError(
            "migration_lock is inside a transaction, and would be released before its commit: write "
            "`with migration_lock(connection), context.begin_transaction():`"
        )
    if on.dialect.name == "sqlite":
        return _on_file(on, _validate.name(name), _validate.timeout(timeout))
    return _on_session(on, name, namespace, timeout, pooler)


@contextmanager
def _on_url(url: str, name: str, namespace: str, timeout: Seconds | None) -> Generator[Hold, None, None]:
    with Client.from_url(url, namespace=namespace) as locks, locks.lock(name, timeout=timeout) as hold:
        yield hold


@contextmanager
def _on_session(
    connection: Connection, name: str, namespace: str, timeout: Seconds | None, pooler: str
) -> Generator[None, None, None]:
    lock = session_lock(connection, name, namespace=namespace, timeout=timeout, pooler=pooler, settle=connection.commit)
    with lock:
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        unfinished = _has_written(connection)
        connection.rollback()  # what is left open by Alembic has only read
        if unfinished:
            raise RuntimeError(
                "a transaction was still open when migration_lock ended, and was rolled back: write `with "
                "migration_lock(connection), context.begin_transaction():`, or commit before the end of the block"
            )


def _has_written(connection: Connection) -> bool:
    """Return whether a transaction is open that has written; only where DDL belongs to the transaction."""
    if not connection.in_transaction() or connection.dialect.name != "postgresql":
        return False
    return connection.exec_driver_sql("SELECT txid_current_if_assigned()").scalar() is not None


@contextmanager
def _on_file(connection: Connection, name: str, left: float | None) -> Generator[None, None, None]:
    database = connection.exec_driver_sql("PRAGMA database_list").fetchall()[0][2]
    connection.rollback()
    if not database:  # in memory: it belongs to this process
        yield
        return
    with file_lock(f"{database}.migration-lock", name, left):
        yield

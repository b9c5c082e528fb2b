"""Locks inside your own PostgreSQL transaction: `transaction_lock` and `async_transaction_lock`.

The lock belongs to the transaction: the call acquires it, and the commit or rollback releases it, even if the process
dies. So it protects the writes of that transaction without a lease, a token or a clock: if the session dies, the commit
fails. It needs no tables, no client and no further connection, and works behind a transaction pooler. It excludes other
transactions that lock the same name, and clients with ``mode=session``. Lease rows of the same name are independent.

Example:
    <!-- not run: it needs a server -->
    ```python
    with psycopg.connect("postgresql://localhost/app") as connection:  # commits at the end
        transaction_lock(connection, "stock:42", timeout=2)
        connection.execute("UPDATE stock SET left_over = left_over - 1 WHERE item = 42")
    ```
"""

from __future__ import annotations

from typing import Any

from leasehold import _validate
from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, Unsupported
from leasehold.guards.connection import Statement, Statements, arun, code_of, dialect_of, run
from leasehold.stores._sql.advisory_key import key_of

__all__ = ["async_transaction_lock", "transaction_lock"]

NOT_AVAILABLE = "55P03"
NO_TRANSACTION = "25P01"

SLICE = 5.0
"""Seconds of one wait of an asyncio caller in the server: the delay after a cancellation that gets lost."""


def transaction_lock(
    connection: Any,
    name: str,
    *,
    namespace: str = "default",
    timeout: Seconds | None = None,
    shared: bool = False,
) -> None:
    """Lock ``name`` to the end of the transaction that ``connection`` is in.

    Args:
        connection: a connection or cursor of psycopg, a connection or session of SQLAlchemy, Django's connection.
        name: 1 to 512 bytes of UTF-8.
        namespace: names of different namespaces never meet.
        timeout: seconds to wait at most; None waits for ever, 0 does not wait.
        shared: together with other shared locks of the name; else exclusive.

    Raises:
        AcquireTimeout: another transaction or session has it. Your transaction is unchanged, and may continue.
        RuntimeError: the connection is not in a transaction: the lock would be released at once.
        Unsupported: the transaction reads from a snapshot (REPEATABLE READ, SERIALIZABLE), which is older than the
            lock: it would not see the writes of the previous holder. Use READ COMMITTED. Or the server is a standby,
            whose locks exclude no session of the primary.
    """
    run(connection, _lock(connection, name, namespace, timeout, shared, None))


async def async_transaction_lock(
    connection: Any,
    name: str,
    *,
    namespace: str = "default",
    timeout: Seconds | None = None,
    shared: bool = False,
) -> None:
    """Lock ``name`` to the end of the transaction that an asyncio ``connection`` is in. As `transaction_lock`."""
    await arun(connection, _lock(connection, name, namespace, timeout, shared, SLICE))


def _lock(
    connection: Any, name: str, namespace: str, timeout: Seconds | None, shared: bool, most: float | None
) -> Statements[None]:
    found = dialect_of(connection)
    if found not in ("postgresql", ""):
        raise TypeError(f"transaction_lock needs a connection to PostgreSQL, not to {found}")
    key = key_of(_validate.name(namespace, "namespace"), _validate.name(name))
    left = _validate.timeout(timeout)
    try:
        yield Statement("SAVEPOINT leasehold")
    except Exception as error:
        if code_of(error) == NO_TRANSACTION:
            raise RuntimeError(
                "transaction_lock needs a transaction: on a connection that commits each statement the lock would be "
                "free again at once; write for example `with connection.transaction():` around it"
            ) from error
        raise
    settings = yield Statement(
        "SELECT current_setting('transaction_isolation') AS level, current_setting('lock_timeout') AS waits, "
        "pg_is_in_recovery()::int AS standby"
    )
    isolation, before, standby = settings.rows[0]
    if standby:
        yield Statement("RELEASE SAVEPOINT leasehold")
        raise Unsupported(
            "this server is a standby, whose locks the primary does not know: the lock would not exclude its sessions; "
            "connect to the primary"
        )
    if isolation not in ("read committed", "read uncommitted"):  # the latter is the former in PostgreSQL
        yield Statement("RELEASE SAVEPOINT leasehold")
        raise Unsupported(
            f"this transaction is {isolation.upper()}: it reads from a snapshot that is older than the lock, and would "
            "not see the writes of the previous holder; use READ COMMITTED"
        )
    if (yield from _try(key, shared)):
        yield Statement("RELEASE SAVEPOINT leasehold")
        return
    yield from _wait(name, key, left, shared, most, before)


def _try(key: int, shared: bool) -> Statements[bool]:
    answer = yield Statement(f"SELECT pg_try_advisory_xact_lock{'_shared' if shared else ''}({{}}::bigint)", (key,))
    return bool(answer.rows[0][0])


def _wait(name: str, key: int, left: float | None, shared: bool, most: float | None, before: str) -> Statements[None]:
    while left is None or left > 0:
        part = min(value for value in (left, most, 86_400.0) if value is not None)
        yield Statement("SELECT set_config('lock_timeout', {}, true)", (f"{max(int(part * 1000), 1)}ms",))
        try:
            yield Statement(f"SELECT pg_advisory_xact_lock{'_shared' if shared else ''}({{}}::bigint)", (key,))
        except Exception as error:
            if code_of(error) != NOT_AVAILABLE:
                raise
            # This also undoes the setting: the transaction continues.
            yield Statement("ROLLBACK TO SAVEPOINT leasehold")
        else:
            yield Statement("SELECT set_config('lock_timeout', {}, true)", (before,))
            yield Statement("RELEASE SAVEPOINT leasehold")
            return
        left = None if left is None else left - part
    yield Statement("RELEASE SAVEPOINT leasehold")
    raise AcquireTimeout(f"could not acquire {name!r} in time: another transaction or session has it", name=name)

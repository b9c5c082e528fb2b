"""Locks on Django's own database connection: `transaction_lock` and `atomic_lock`.

Theory of operation:

* PostgreSQL has locks of a transaction. The server releases them at the commit or rollback, even if the process dies,
  and needs no tables for them. A lock belongs to the outermost block: the end of an inner `atomic` keeps it. A rollback
  to a savepoint releases what was acquired after it, together with the writes after it.
* MySQL and MariaDB have locks of a session only (`GET_LOCK`). Their reads use a snapshot that begins with the first
  read of a transaction. So the lock is acquired before the outermost block begins, and released after it has ended.
  `atomic_lock` is that outermost block; inside another one, or with autocommit off, it refuses.
* SQLite locks the whole file: nothing to add to ``"transaction_mode": "IMMEDIATE"``.
"""
# pyright: basic
# (Django has no types)

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from types import TracebackType
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.transaction import TransactionManagementError

from leasehold import postgres
from leasehold._validate import Seconds
from leasehold.errors import Unsupported
from leasehold.integrations._common.advisory import session_lock

__all__ = ["atomic_lock", "transaction_lock"]

F = TypeVar("F", bound=Callable[..., Any])

SQLITE = (
    "SQLite has no locks in a transaction but that of the whole file: begin the transaction with "
    '"transaction_mode": "IMMEDIATE" in OPTIONS (Django 5.1), or use locks.lock() around it'
)


def transaction_lock(
    name: str,
    *,
    using: str = DEFAULT_DB_ALIAS,
    namespace: str = "default",
    timeout: Seconds | None = None,
    shared: bool = False,
) -> None:
    """Lock ``name`` to the end of the transaction that Django's connection is in; on PostgreSQL only.

    Args:
        name: 1 to 512 bytes of UTF-8.
        using: the alias of the database.
        namespace: names of different namespaces never meet.
        timeout: seconds to wait at most; None waits for ever, 0 does not wait.
        shared: together with other shared locks of the name; else exclusive.

    Raises:
        AcquireTimeout: another transaction has it. Yours is unchanged, and may continue.
        TransactionManagementError: there is no transaction: the lock would be released at once.
        Unsupported: the transaction reads from a snapshot (REPEATABLE READ), or the database has no such locks.
    """
    connection = connections[using]
    _require_postgresql(connection)
    if connection.get_autocommit():
        raise TransactionManagementError(
            "transaction_lock needs a transaction, or the lock would be free again at once; write `with "
            "transaction.atomic():` around it, or use atomic_lock"
        )
    postgres.transaction_lock(connection, name, namespace=namespace, timeout=timeout, shared=shared)


def atomic_lock(
    name: str,
    *,
    using: str = DEFAULT_DB_ALIAS,
    namespace: str = "default",
    timeout: Seconds | None = None,
    durable: bool = False,
) -> AtomicLock:
    """Run a block, or a function that is decorated, in `transaction.atomic` and under a lock of the database.

    Args:
        name: 1 to 512 bytes of UTF-8.
        using: the alias of the database.
        namespace: names of different namespaces never meet.
        timeout: seconds to wait at most; None waits for ever, 0 does not wait.
        durable: refuse to be inside another block, as in `transaction.atomic`.

    Raises:
        AcquireTimeout: another transaction has it.
        RuntimeError: ``durable``, and there is a block around it.
        Unsupported: on MySQL and MariaDB, inside another block, or with autocommit off; on PostgreSQL with REPEATABLE
            READ; on SQLite.
        LeaseLost: on MySQL and MariaDB, at the end: the session ended before its block did.

    Example:
        <!-- not run: it needs a database -->
        ```python
        with atomic_lock("stock:42", timeout=2):  # the commit releases it
            Stock.objects.filter(item=42).update(left_over=F("left_over") - 1)
        ```
    """
    return AtomicLock(lambda: _locked(name, using, namespace, timeout, durable))


class AtomicLock(ContextDecorator):
    """What `atomic_lock` returns: a context manager, and a decorator for functions."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._open = _Open()

    def __call__(self, function: F) -> F:
        """Return the function, each call of which is such a block.

        Raises:
            TypeError: it is a coroutine function or a generator, of which a call runs nothing.
        """
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"atomic_lock needs a plain function, and {function.__name__} would run after its call: Django has no "
                "transactions in async code; decorate a plain function, and call it by sync_to_async"
            )
        return super().__call__(function)

    def _recreate_cm(self) -> AtomicLock:
        return AtomicLock(self._make)

    def __enter__(self) -> None:
        block = self._make()
        block.__enter__()
        self._open.blocks.append(block)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._open.blocks.pop().__exit__(kind, error, trace)


class _Open(threading.local):
    """The blocks of the calling thread, as Django's connections are: several threads may use one `AtomicLock`."""

    def __init__(self) -> None:
        self.blocks: list[AbstractContextManager[None]] = []


@contextmanager
def _locked(
    name: str, using: str, namespace: str, timeout: Seconds | None, durable: bool
) -> Generator[None, None, None]:
    connection = connections[using]
    if connection.vendor != "mysql":
        _require_postgresql(connection)
        with _atomic(using=using, durable=durable):
            postgres.transaction_lock(connection, name, namespace=namespace, timeout=timeout)
            yield
        return
    _require_outermost(connection, durable)
    with (
        session_lock(connection, name, namespace=namespace, timeout=timeout),
        _atomic(using=using, durable=durable),
    ):
        yield


_atomic: Any = transaction.atomic


def _require_postgresql(connection: Any) -> None:
    if connection.vendor == "postgresql":
        return
    if connection.vendor == "mysql":
        raise Unsupported(
            "MySQL and MariaDB have no locks that a commit releases: use atomic_lock in place of the outermost "
            "transaction.atomic, or locks.lock() around it"
        )
    if connection.vendor == "sqlite":
        raise Unsupported(SQLITE)
    raise Unsupported(f"{connection.vendor} is not known here: use locks.lock() around the transaction")


def _require_outermost(connection: Any, durable: bool) -> None:
    """Refuse a transaction around a lock of MySQL; the block of a test case does not count, as with ``durable``."""
    blocks = getattr(connection, "atomic_blocks", [])  # these names are Django's own; without them no block is excused
    if connection.in_atomic_block and not (blocks and getattr(blocks[-1], "_from_testcase", False)):
        if durable:
            raise RuntimeError("A durable atomic block cannot be nested within another atomic block.")
        raise Unsupported(
            "on MySQL and MariaDB atomic_lock must be the outermost block: inside another transaction.atomic its lock "
            "would be released before the commit, and reads might use a snapshot that is older than the lock"
        )
    if not connection.in_atomic_block and not connection.get_autocommit():  # then no block ends with a commit
        raise Unsupported(
            "on MySQL and MariaDB atomic_lock needs autocommit: without it the lock would be released before the "
            "commit, and reads might use a snapshot that is older than the lock; call transaction.set_autocommit(True) "
            "before, or use locks.lock() around the transaction and its commit"
        )

"""Upgrades tables of layout 1, which an earlier version created; newer ones are left as they are."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar

from django.db import DatabaseError, migrations, transaction

from leasehold.stores._sql import tables as layout
from leasehold.stores.mysql.statements import DIALECT

tables = import_module("leasehold.integrations.django.tables.migrations.0001_initial")

WITHIN = int(layout.CREATE_WITHIN * 0.9)
"""Seconds that a change of the tables may wait for open transactions: all locks wait behind it."""

CONFLICTS = ("40001", "40P01", "1213", "1020")
"""Codes of an error that rolls back the last step, which is then repeated: clients lock names in another order."""


def upgrade(apps: Any, schema_editor: Any) -> None:
    """Upgrade the tables as ``leasehold init`` does, unless that has done so; see `leasehold.stores._sql.tables`."""
    connection = schema_editor.connection
    if connection.vendor not in tables.SCRIPTS or _number(connection, layout.VERSION.text) > layout.OLD:
        return
    path = tables.SCRIPTS[connection.vendor].replace("schema", "upgrade")
    add_columns, *drop_functions = layout.split(files("leasehold.stores").joinpath(path).read_text(encoding="utf-8"))
    try:
        _run_limited(connection, add_columns)
    except DatabaseError as error:
        if connection.vendor != "mysql" or str(error.args[0]) not in DIALECT.already_there:
            raise
    for statement in drop_functions:
        with suppress(DatabaseError):  # without the right to drop them they stay, as with ``leasehold init``
            _run_limited(connection, statement)
    _run(connection, layout.STOP_CLIENTS)
    try:
        _finish(connection)
    except BaseException:
        with suppress(DatabaseError):
            _run(connection, layout.LET_CLIENTS_GO_ON)
        raise


def _finish(connection: Any) -> None:
    """Take the last step until no deadlock with a client rolls it back."""
    for left in reversed(range(layout.CONFLICTS)):
        try:
            return _count_entries(connection)
        except DatabaseError as error:
            if _code(error) not in CONFLICTS or not left:
                raise


def _count_entries(connection: Any) -> None:
    with _transaction(connection):
        if connection.vendor == "postgresql":  # with another level of the settings the count could be too old
            _run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        _run(connection, layout.LOCK_NAMES)
        if _number(connection, layout.LOCK_VERSION) == layout.UPGRADING:
            _run(connection, layout.COUNT_ENTRIES)
            _run(connection, layout.SET_LAYOUT)


def _run(connection: Any, statement: str) -> None:
    """Run a statement; the schema editor takes none in a transaction of MySQL."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _run_limited(connection: Any, statement: str) -> None:
    """Run a statement that waits for open transactions, for a limited time."""
    if connection.vendor == "postgresql":
        with _transaction(connection):
            _run(connection, f"SET LOCAL lock_timeout = '{WITHIN}s'")
            _run(connection, statement)
        return
    before = _number(connection, "SELECT @@SESSION.lock_wait_timeout")
    _run(connection, f"SET SESSION lock_wait_timeout = {WITHIN}")
    try:
        _run(connection, statement)
    finally:
        with suppress(DatabaseError):  # the connection may be lost
            _run(connection, f"SET SESSION lock_wait_timeout = {before}")


def _transaction(connection: Any) -> Any:
    return transaction.atomic(connection.alias)


def _number(connection: Any, statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        number: int = cursor.fetchone()[0]
        return number


def _code(error: DatabaseError) -> str:
    """Return the code of an error: psycopg has it as an attribute, the drivers of MySQL as the first argument."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or str(error.args[0])


class Migration(migrations.Migration):  # type: ignore[misc]
    """Upgrades the tables; backwards it does nothing."""

    atomic = False  # each statement by itself: clients of before see its changes one after another
    dependencies: ClassVar = [("leasehold_tables", "0001_initial")]
    operations: ClassVar = [migrations.RunPython(upgrade, migrations.RunPython.noop, atomic=False)]

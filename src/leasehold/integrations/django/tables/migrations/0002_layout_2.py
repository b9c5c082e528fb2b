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


def upgrade(apps: Any, schema_editor: Any) -> None:
    """Upgrade the tables as ``leasehold init`` does, unless that has done so; see `leasehold.stores._sql.tables`."""
    connection = schema_editor.connection
    if connection.vendor not in tables.SCRIPTS or _version(connection, layout.VERSION.text) > layout.OLD:
        return
    path = tables.SCRIPTS[connection.vendor].replace("schema", "upgrade")
    add_columns, *drop_functions = layout.split(files("leasehold.stores").joinpath(path).read_text(encoding="utf-8"))
    try:
        _run(connection, add_columns)
    except DatabaseError as error:
        if connection.vendor != "mysql" or str(error.args[0]) not in DIALECT.already_there:
            raise
    for statement in drop_functions:
        with suppress(DatabaseError):  # without the right to drop them they stay, as with ``leasehold init``
            _run(connection, statement)
    _run(connection, layout.STOP_CLIENTS)
    try:
        _count_entries(connection)
    except BaseException:
        with suppress(DatabaseError):
            _run(connection, layout.LET_CLIENTS_GO_ON)
        raise


def _count_entries(connection: Any) -> None:
    savepoint: Any = transaction.atomic(connection.alias)
    with savepoint:
        if connection.vendor == "postgresql":  # with another level of the settings the count could be too old
            _run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        _run(connection, layout.LOCK_NAMES)
        if _version(connection, layout.LOCK_VERSION) == layout.UPGRADING:
            _run(connection, layout.COUNT_ENTRIES)
            _run(connection, layout.SET_LAYOUT)


def _run(connection: Any, statement: str) -> None:
    """Run a statement; the schema editor takes none in a transaction of MySQL."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _version(connection: Any, statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        version: int = cursor.fetchone()[0]
        return version


class Migration(migrations.Migration):  # type: ignore[misc]
    """Upgrades the tables; backwards it does nothing."""

    atomic = False  # each statement by itself: clients of before see its changes one after another
    dependencies: ClassVar = [("leasehold_tables", "0001_initial")]
    operations: ClassVar = [migrations.RunPython(upgrade, migrations.RunPython.noop, atomic=False)]

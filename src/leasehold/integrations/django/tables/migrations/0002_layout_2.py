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
    if connection.vendor not in tables.SCRIPTS or _version(connection, layout.VERSION.text) > layout.BEFORE:
        return
    path = tables.SCRIPTS[connection.vendor].replace("schema", "upgrade")
    add_columns, *drop_functions = layout.split(files("leasehold.stores").joinpath(path).read_text(encoding="utf-8"))
    try:
        schema_editor.execute(add_columns, params=None)
    except DatabaseError as error:
        if connection.vendor != "mysql" or str(error.args[0]) not in DIALECT.already_there:
            raise
    for statement in drop_functions:
        with suppress(DatabaseError):  # without the right to drop them they stay, and find no table of their layout
            schema_editor.execute(statement, params=None)
    schema_editor.execute(layout.STOP_CLIENTS, params=None)
    savepoint: Any = transaction.atomic(connection.alias)
    with savepoint:
        if (
            connection.vendor == "postgresql"
        ):  # the settings may name another level, at which the count would be too old
            schema_editor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", params=None)
        schema_editor.execute(layout.LOCK_NAMES, params=None)
        if _version(connection, layout.LOCK_VERSION) == layout.UPGRADING:
            schema_editor.execute(layout.COUNT_ENTRIES, params=None)
            schema_editor.execute(layout.SET_LAYOUT, params=None)


def _version(connection: Any, text: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(text)
        version: int = cursor.fetchone()[0]
        return version


class Migration(migrations.Migration):  # type: ignore[misc]
    """Upgrades the tables; backwards it does nothing."""

    atomic = False  # each statement by itself: clients of before see its changes one after another
    dependencies: ClassVar = [("leasehold_tables", "0001_initial")]
    operations: ClassVar = [migrations.RunPython(upgrade, migrations.RunPython.noop, atomic=False)]

"""Upgrades tables of layout 1, which an earlier version created; newer ones are left as they are."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar

from django.db import DatabaseError, migrations, transaction

from leasehold.stores._sql.tables import BEFORE, FINISH_UPGRADE, STOP_CLIENTS, UPGRADING, split
from leasehold.stores.mysql.statements import DIALECT

tables = import_module("leasehold.integrations.django.tables.migrations.0001_initial")


def upgrade(apps: Any, schema_editor: Any) -> None:
    """Upgrade the tables, unless ``leasehold init`` has done so."""
    connection = schema_editor.connection
    if connection.vendor not in tables.SCRIPTS:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT version FROM leasehold_meta")
        if cursor.fetchone()[0] not in (BEFORE, UPGRADING):
            return
    script = files("leasehold.stores").joinpath(tables.SCRIPTS[connection.vendor].replace("schema", "upgrade"))
    for statement in (STOP_CLIENTS, *split(script.read_text(encoding="utf-8"))):
        try:
            schema_editor.execute(statement, params=None)
        except DatabaseError as error:
            if connection.vendor != "mysql" or str(error.args[0]) not in DIALECT.already_there:
                raise
    savepoint: Any = transaction.atomic(connection.alias)
    with savepoint:
        for statement in FINISH_UPGRADE:
            schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):  # type: ignore[misc]
    """Upgrades the tables; backwards it does nothing."""

    dependencies: ClassVar = [("leasehold_tables", "0001_initial")]
    operations: ClassVar = [migrations.RunPython(upgrade, migrations.RunPython.noop, atomic=False)]

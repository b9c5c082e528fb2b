"""The functions of version 1, which make locks faster; without the right to create them, nothing changes."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar

from django.db import DatabaseError, migrations, transaction

from leasehold.stores._sql.plain import ACQUIRE, RELEASE
from leasehold.stores._sql.tables import split

tables = import_module("leasehold.integrations.django.tables.migrations.0001_initial")


def create(apps: Any, schema_editor: Any) -> None:
    """Create the functions, unless ``leasehold init`` has done so."""
    connection = schema_editor.connection
    if connection.vendor not in tables.SCRIPTS:
        return
    if connection.vendor == "postgresql":
        schema_editor.execute(tables.ALONE, params=None)
    path = tables.SCRIPTS[connection.vendor].replace("schema", "functions")
    try:
        savepoint: Any = transaction.atomic(connection.alias)
        with savepoint:
            for statement in split(files("leasehold.stores").joinpath(path).read_text(encoding="utf-8")):
                schema_editor.execute(statement, params=None)
    except DatabaseError as error:
        print(f"\n  no functions: locks work without them, but slower ({str(error).strip()})", end="")


def drop(apps: Any, schema_editor: Any) -> None:
    """Drop the functions."""
    vendor = schema_editor.connection.vendor
    for name in (ACQUIRE, RELEASE) if vendor in tables.SCRIPTS else ():
        what = "FUNCTION" if vendor == "postgresql" else "PROCEDURE"
        schema_editor.execute(f"DROP {what} IF EXISTS {name}", params=None)


class Migration(migrations.Migration):  # type: ignore[misc]
    """Creates the functions; backwards it drops them."""

    dependencies: ClassVar = [("leasehold_tables", "0001_initial")]
    operations: ClassVar = [migrations.RunPython(create, drop, atomic=False)]

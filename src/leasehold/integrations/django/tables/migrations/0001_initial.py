"""The tables, on PostgreSQL, MySQL and MariaDB; on other databases the migration does nothing."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from importlib.resources import files
from typing import Any, ClassVar

from django.db import migrations

from leasehold.stores._sql.tables import split

SCRIPTS = {"postgresql": "postgres/schema.sql", "mysql": "mysql/schema.sql"}

TABLES = ("leasehold_entry", "leasehold_cell", "leasehold_name", "leasehold_meta")

CREATOR_LOCK = "SELECT pg_advisory_xact_lock(7235419080266545006)"
"""Takes the advisory lock of ``leasehold init``: both may run at the same time."""


def create(apps: Any, schema_editor: Any) -> None:
    """Create the tables, unless ``leasehold init`` has done so."""
    vendor = schema_editor.connection.vendor
    if vendor not in SCRIPTS:
        return
    if vendor == "postgresql":
        schema_editor.execute(CREATOR_LOCK, params=None)
    for statement in split(files("leasehold.stores").joinpath(SCRIPTS[vendor]).read_text(encoding="utf-8")):
        schema_editor.execute(statement, params=None)


def drop(apps: Any, schema_editor: Any) -> None:
    """Drop the tables, with all locks in them."""
    if schema_editor.connection.vendor in SCRIPTS:
        for table in TABLES:
            schema_editor.execute(f"DROP TABLE IF EXISTS {table}", params=None)


class Migration(migrations.Migration):  # type: ignore[misc]
    """Creates the tables; backwards it drops them."""

    operations: ClassVar = [migrations.RunPython(create, drop, atomic=False)]  # MySQL: no DDL in a transaction

"""The engine of SQLAlchemy for libraries that stand on it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

sqlalchemy: Any = import_module("sqlalchemy")

DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""By the scheme of a URL; MySQL and MariaDB are spoken with by PyMySQL."""


def engine(url: str) -> Any:
    """Return an engine with the drivers that leasehold uses, too."""
    scheme, _, rest = url.partition("://")
    return sqlalchemy.create_engine(f"{DRIVERS.get(scheme, 'mysql+pymysql')}://{rest}")

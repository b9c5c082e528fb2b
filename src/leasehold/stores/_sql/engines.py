"""SQLAlchemy's engines: which store is behind one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold._runtimes.base import Flavor
from leasehold.store_api import Opener

STORES = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
"""Name of the engine's dialect to the store's module."""


def adopt(client: Any, flavor: Flavor) -> Opener:
    """Reach the database as ``client``, an engine, does.

    Raises:
        TypeError: it is no engine, or one of another database.

    """
    dialect = getattr(getattr(client, "dialect", None), "name", "")
    if dialect not in STORES:
        what = f"engine of {dialect}" if dialect else type(client).__name__
        raise TypeError(f"cannot make locks from a SQLAlchemy {what}; known are engines of: {', '.join(STORES)}")
    opener: Opener = import_module(f"leasehold.stores.{STORES[dialect]}").adopt(client, flavor)
    return opener

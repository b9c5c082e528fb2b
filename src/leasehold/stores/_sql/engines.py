"""Finds the store for an engine of SQLAlchemy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold._runtimes.base import Flavor
from leasehold.store_api import Opener

STORES = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
"""Module of the store, by the dialect of the engine."""


def adopt(client: Any, flavor: Flavor) -> Opener:
    """Reach the database as ``client``, an engine, does.

    Raises:
        TypeError: it is not an engine, or its database is not supported.

    """
    dialect = getattr(getattr(client, "dialect", None), "name", "")
    if dialect not in STORES:
        what = f"engine of {dialect}" if dialect else type(client).__name__
        raise TypeError(f"cannot make locks from a SQLAlchemy {what}; known are engines of: {', '.join(STORES)}")
    opener: Opener = import_module(f"leasehold.stores.{STORES[dialect]}").adopt(client, flavor)
    return opener

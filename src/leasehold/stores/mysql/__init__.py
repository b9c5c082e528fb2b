"""MySQL and MariaDB: locks in the tables of a database (MySQL 8.0, MariaDB 10.6 or later)."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold._runtimes.base import Flavor
from leasehold._url import StoreURL
from leasehold.stores._sql.openers import SQLOpener
from leasehold.stores.mysql.connection import adopting, settings
from leasehold.stores.mysql.statements import DIALECT

__all__ = ["MySQL", "adopt", "from_url"]


class MySQL(SQLOpener):
    """Opens the locks of one database; with mode "session" those of GET_LOCK."""

    dialect = DIALECT
    stores: ClassVar = {
        "rows": "leasehold.stores.mysql.store.MySQLStore",
        "session": "leasehold.stores.mysql.session.MySQLSessionStore",
    }


def from_url(url: StoreURL) -> MySQL:
    """Read a URL: ``mysql://`` or ``mariadb://``, with ``?mode=session`` for the server's own locks."""
    mode = url.options.get("mode", "rows")
    if mode not in MySQL.stores:
        raise ValueError(f"option 'mode' in the {url.scheme} URL is rows (the default) or session")
    return MySQL(settings.from_url(url, ("mode",)), mode)


def adopt(client: Any, flavor: Flavor) -> MySQL:
    """Reach the database as ``client`` does: a connection of PyMySQL, one or a pool of asyncmy, or SQLAlchemy's engine.

    Raises:
        TypeError: it is of the other flavor, or on another driver.
        ValueError: it names no database.
    """
    return MySQL(adopting.from_client(client, flavor))

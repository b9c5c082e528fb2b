"""MySQL and MariaDB: locks in the tables of a database (MySQL 8.0, MariaDB 10.6 or later)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import StoreURL
from leasehold.stores._sql.openers import Prepared
from leasehold.stores.mysql import statements
from leasehold.stores.mysql.connection import adopting, settings
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.session import MySQLSessionStore
from leasehold.stores.mysql.store import MySQLStore

__all__ = ["MySQL", "MySQLSessionStore", "MySQLStore", "adopt", "from_url"]


@dataclass(frozen=True)
class MySQL(Prepared):
    """Opens the locks of one database: leases in its tables, or with ``session`` the server's own, by GET_LOCK."""

    settings: Settings
    session: bool = False

    def open(self, runtime: Runtime, namespace: str) -> MySQLStore | MySQLSessionStore:
        if self.session:
            return MySQLSessionStore(runtime, self.settings, namespace)
        return MySQLStore(runtime, self.settings, namespace)

    def script(self) -> str:
        return statements.script()


def from_url(url: StoreURL) -> MySQL:
    """Read a URL: ``mysql://`` or ``mariadb://``, with ``?mode=session`` for the server's own locks."""
    mode = url.options.get("mode", "rows")
    if mode not in ("rows", "session"):
        raise ValueError(f"option 'mode' in the {url.scheme} URL is rows (the default) or session")
    return MySQL(settings.from_url(url, ("mode",)), mode == "session")


def adopt(client: Any, flavor: Flavor) -> MySQL:
    """Reach the database as ``client`` does: a connection of PyMySQL, one or a pool of asyncmy, or SQLAlchemy's engine.

    Raises:
        TypeError: it is of the other flavor, or on another driver.
        ValueError: it names no database.

    """
    return MySQL(adopting.from_client(client, flavor))

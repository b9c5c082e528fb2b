"""PostgreSQL: locks in the tables of a database (version 10 or later)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import StoreURL
from leasehold.stores._sql.openers import Prepared
from leasehold.stores.postgres import statements
from leasehold.stores.postgres.connection import adopting, settings
from leasehold.stores.postgres.connection.settings import Settings
from leasehold.stores.postgres.session import SessionStore
from leasehold.stores.postgres.store import PostgresStore

__all__ = ["Postgres", "PostgresStore", "adopt", "from_url"]


MODES = {"rows": PostgresStore, "session": SessionStore}
"""What holds the lock: a lease in a row, or a session."""


@dataclass(frozen=True)
class Postgres(Prepared):
    """Opens the locks of one database."""

    settings: Settings
    mode: str = "rows"

    def open(self, runtime: Runtime, namespace: str) -> PostgresStore:
        return MODES[self.mode](runtime, self.settings, namespace)

    def script(self) -> str:
        return statements.script()


def from_url(url: StoreURL) -> Postgres:
    """Read a URL: ``postgresql://`` or ``postgres://``."""
    # No option's value is a local variable of a frame that raises: it may be a misplaced password.
    if url.options.get("mode") == "transaction":
        raise ValueError(
            "mode=transaction needs your own transaction, so no client can have it; use transaction_lock(connection, "
            "name) of leasehold.postgres"
        )
    if url.options.get("mode", "rows") not in MODES:
        raise ValueError(f"option 'mode' in the {url.scheme} URL is one of: {', '.join(MODES)}")
    return Postgres(settings.from_url(url), url.options.get("mode", "rows"))


def adopt(client: Any, flavor: Flavor) -> Postgres:
    """Reach the database as ``client`` does: a psycopg connection or pool, or a SQLAlchemy engine."""
    return Postgres(adopting.from_client(client, flavor))

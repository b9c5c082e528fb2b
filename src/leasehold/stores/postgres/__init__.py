"""PostgreSQL: locks in the tables of a database (version 10 or later)."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold._runtimes.base import Flavor
from leasehold._url import StoreURL
from leasehold.stores._sql.openers import SQLOpener
from leasehold.stores.postgres.connection import adopting, settings
from leasehold.stores.postgres.statements import DIALECT

__all__ = ["Postgres", "adopt", "from_url"]


class Postgres(SQLOpener):
    """Opens the locks of one database."""

    dialect = DIALECT
    stores: ClassVar = {
        "rows": "leasehold.stores.postgres.store.PostgresStore",
        "session": "leasehold.stores.postgres.session.SessionStore",
    }


def from_url(url: StoreURL) -> Postgres:
    """Read a URL: ``postgresql://`` or ``postgres://``."""
    # No option's value is a local variable of a frame that raises: it may be a misplaced password.
    if url.options.get("mode") == "transaction":
        raise ValueError(
            "mode=transaction needs your own transaction, so a client cannot use it; use transaction_lock(connection, "
            "name) of leasehold.postgres"
        )
    if url.options.get("mode", "rows") not in Postgres.stores:
        raise ValueError(f"option 'mode' in the {url.scheme} URL is one of: {', '.join(Postgres.stores)}")
    return Postgres(settings.from_url(url), url.options.get("mode", "rows"))


def adopt(client: Any, flavor: Flavor) -> Postgres:
    """Reach the database as ``client`` does: a psycopg connection or pool, or a SQLAlchemy engine."""
    return Postgres(adopting.from_client(client, flavor))

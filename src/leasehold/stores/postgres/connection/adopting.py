"""Reads the settings of a user's own objects: psycopg's connections and pools, SQLAlchemy's engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

from leasehold._runtimes.base import Flavor
from leasehold._url import Veiled
from leasehold.stores.postgres.connection.settings import Settings, display_address

KNOWN = "a psycopg connection, a psycopg_pool pool, or a SQLAlchemy engine of PostgreSQL"

IGNORED_OPTIONS = ("options", "fallback_application_name", "replication", "connect_timeout", "context", "autocommit")
"""Settings that are not copied."""


def from_client(client: Any, flavor: Flavor) -> Settings:
    """Copy the settings of a user's object. The object is neither used nor closed.

    Raises:
        TypeError: its type is not supported, or of the other flavor.
    """
    if isinstance(client, psycopg.Connection | psycopg.AsyncConnection):
        _same_flavor(client, isinstance(client, psycopg.AsyncConnection), flavor)
        return _settings(_of_connection(client))
    if hasattr(client, "conninfo") and "psycopg_pool" in type(client).__module__:
        _same_flavor(client, type(client).__name__.startswith("Async"), flavor)
        return _settings(_of_pool(client))
    if hasattr(client, "dialect") and hasattr(client, "url"):
        _same_flavor(client, hasattr(client, "sync_engine"), flavor)
        return _settings(_of_engine(client))
    raise TypeError(f"cannot make locks from a {type(client).__name__}; pass {KNOWN}")


def _of_connection(client: Any) -> dict[str, Any]:
    options: dict[str, Any] = dict(client.info.get_parameters())
    if client.info.password:
        options["password"] = client.info.password
    if "host" not in options and client.info.host:
        options["host"] = client.info.host
    options.setdefault("port", str(client.info.port))
    return options


def _of_pool(client: Any) -> dict[str, Any]:
    options: dict[str, Any] = conninfo_to_dict(client.conninfo if isinstance(client.conninfo, str) else "")
    kwargs: Any = client.kwargs  # a function is possible from psycopg_pool 3.3
    if isinstance(kwargs, dict):
        more = cast("dict[str, Any]", kwargs)
        options.update((key, value) for key, value in more.items() if isinstance(value, str | int))
    return options


def _of_engine(client: Any) -> dict[str, Any]:
    if client.dialect.name != "postgresql":
        raise TypeError(f"cannot make locks from a SQLAlchemy engine of {client.dialect.name}; pass {KNOWN}")
    url = client.url
    options = {"host": url.host, "port": url.port, "user": url.username, "dbname": url.database}
    if url.password is not None:
        options["password"] = str(url.password)
    options.update({key: value for key, value in url.query.items() if isinstance(value, str)})
    return {key: str(value) for key, value in options.items() if value is not None}


def _settings(options: Mapping[str, Any]) -> Settings:
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    kept = Veiled((key, value) for key, value in options.items() if key in known and key not in IGNORED_OPTIONS)
    return Settings(display_address(kept), kept)


def _same_flavor(client: Any, asynchronous: bool, flavor: Flavor) -> None:
    if asynchronous is not (flavor is Flavor.ASYNC):
        kind = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
        raise TypeError(f"a {kind} does not fit this client; Client takes blocking ones, AsyncClient those of asyncio")

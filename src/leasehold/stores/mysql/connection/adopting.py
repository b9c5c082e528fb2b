"""Reads the settings of a user's own objects: connections of PyMySQL and asyncmy, asyncmy's pools."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold._runtimes.base import Flavor
from leasehold._url import Veiled
from leasehold.stores.mysql.connection.settings import PORT, Settings

KNOWN = "a connection of PyMySQL, a connection or pool of asyncmy, or an engine of SQLAlchemy on one of them"

COPIED_OPTIONS = ("user", "password", "password_creator", "server_public_key", "auth_plugin_map", "bind_address")
"""Settings that are copied as they are, if the driver has them, besides address, database and TLS."""


def from_client(client: Any, flavor: Flavor) -> Settings:
    """Copy the settings of a user's object. The object is neither used nor closed.

    So it may be in a transaction, in autocommit mode, or in use by another thread.

    Raises:
        TypeError: its type is not supported, or of the other flavor.
        ValueError: it names no database, or uses a socket that was made elsewhere.

    """
    packages = {cls.__module__.partition(".")[0] for cls in type(client).__mro__}
    if not packages & {"pymysql", "asyncmy"}:
        raise TypeError(f"cannot make locks from a {type(client).__name__}; pass {KNOWN}")
    if ("asyncmy" in packages) is not (flavor is Flavor.ASYNC):
        kind = f"{'asyncmy' if 'asyncmy' in packages else 'pymysql'}.{type(client).__name__}"
        raise TypeError(f"a {kind} does not fit this client; Client takes PyMySQL's, AsyncClient takes asyncmy's")
    if hasattr(client, "_conn_kwargs"):
        return _settings(_of_pool(client))
    if hasattr(client, "cursor") and hasattr(client, "ping"):
        return _settings(_of_asyncmy(client) if "asyncmy" in packages else _of_pymysql(client))
    raise TypeError(f"cannot make locks from a {type(client).__name__}; pass {KNOWN}")


def _of_pymysql(client: Any) -> Veiled:
    options = Veiled(host=client.host, port=client.port, unix_socket=client.unix_socket, database=client.db)
    options.update((name, getattr(client, name, None)) for name in COPIED_OPTIONS)
    options["auth_plugin_map"] = client._auth_plugin_map
    if (client._ssl_required or client._secure) and not client.unix_socket:  # it may use TLS; then we do
        options["ssl"] = client.ctx
    return options


def _of_asyncmy(client: Any) -> Veiled:
    names = ("host", "port", "unix_socket", "sock", *COPIED_OPTIONS)
    options = Veiled((name, getattr(client, f"_{name}", None)) for name in names)
    options.update(database=client._db, ssl=client._ssl_context)
    return options


def _of_pool(client: Any) -> Veiled:
    driver: Any = import_module("asyncmy.connection")
    return _of_asyncmy(driver.Connection(**client._conn_kwargs))  # it knows its defaults, and which files to read


def _settings(found: Veiled) -> Settings:
    options = Veiled((name, value) for name, value in found.items() if value)
    if "sock" in options:
        raise ValueError("the connection uses a socket that was made elsewhere (sock=); make locks by a URL")
    database = options.get("database")
    if not database:
        raise ValueError("the connection names no database; locks are in its tables: make it with database=")
    options["database"] = database = database.decode() if isinstance(database, bytes) else str(database)
    if "unix_socket" in options:
        options.pop("host", None)
        options.pop("port", None)
        where = str(options["unix_socket"])
    else:
        where = f"{options.get('host', 'localhost')}:{options.get('port', PORT)}"
    return Settings(f"{where}/{database}", database, options)

"""Settings of a user's own objects: connections of PyMySQL and asyncmy, asyncmy's pools, engines of SQLAlchemy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold._runtimes.base import Flavor
from leasehold._url import Veiled
from leasehold.errors import Unsupported
from leasehold.stores.mysql.connection.settings import PORT, Connect, Settings

KNOWN = "a connection of PyMySQL, a connection or pool of asyncmy, or an engine of SQLAlchemy on one of them"

COPIED_OPTIONS = ("user", "password", "password_creator", "server_public_key", "auth_plugin_map", "bind_address")
"""Settings that are copied as they are, if the driver has them, besides address, database and TLS."""


def from_client(client: Any, flavor: Flavor) -> Settings:
    """Copy the settings of a user's object. The object is neither used nor closed.

    So it may be in a transaction, in autocommit mode, or in use by another thread. An engine makes the connections.

    Raises:
        TypeError: its type is not supported, or of the other flavor, or it is an engine on another driver.
        ValueError: it names no database, or uses a socket that was made elsewhere.
    """
    if hasattr(client, "dialect"):
        return _of_engine(client, flavor)
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


def _of_engine(engine: Any, flavor: Flavor) -> Settings:
    """Let an engine make connections: with its URL, its arguments and its events, but outside of its pool.

    All connections of the pool may be in use, by threads that wait for a lock.
    """
    asynchronous, driver = hasattr(engine, "sync_engine"), engine.dialect.driver
    wanted = "asyncmy" if flavor is Flavor.ASYNC else "pymysql"
    if asynchronous is not (flavor is Flavor.ASYNC) or driver != wanted:
        fitting = "AsyncClient with create_async_engine('mysql+asyncmy://…')"
        if flavor is Flavor.SYNC:
            fitting = "Client with create_engine('mysql+pymysql://…')"
        raise TypeError(f"an engine on {driver} does not fit this client; use {fitting}")

    make = import_module("sqlalchemy.pool").Pool._create_connection  # a StaticPool has none

    async def connect_async() -> Any:
        return _checked(await import_module("sqlalchemy.util").greenlet_spawn(make, engine.pool))

    def connect() -> Any:
        return _checked(make(engine.pool))

    url = engine.url
    where = f"{url.host or 'localhost'}:{url.port or PORT}/{url.database or ''}"
    connects: Connect = connect_async if asynchronous else connect
    return Settings(where, url.database or "", Veiled(host=url.host or "localhost"), connects)


def _checked(made: Any) -> Any:
    connection = made.driver_connection
    charset = getattr(connection, "charset", None) or connection._charset
    if charset != "utf8mb4":
        raise Unsupported(f"the engine's connections use the character set {charset}; make it with charset=utf8mb4")
    return connection

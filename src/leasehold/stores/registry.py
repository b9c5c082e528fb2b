"""The opener of a store, by the scheme of its URL or by a client object. Drivers are imported only when needed.

Third parties add a scheme by an entry point in the group ``leasehold.stores``: its name is the scheme, its value a
function from `StoreURL` to `Opener`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import quote

from leasehold._runtimes.base import Flavor
from leasehold._url import Secret, StoreURL, parse
from leasehold.errors import MissingDriver
from leasehold.store_api import Opener

if TYPE_CHECKING:
    from pathlib import Path

    from leasehold.stores.redis.strict.quorum import Strict as Strict  # noqa: PLC0414  (exported)
else:

    def __getattr__(name: str) -> object:
        if name != "Strict":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("leasehold.stores.redis.strict.quorum").Strict


GROUP = "leasehold.stores"

BUILT_IN: Mapping[str, str] = {
    "memory": "leasehold.stores.memory",
    "sqlite": "leasehold.stores.sqlite",
    **{
        scheme + way: "leasehold.stores.redis.openers"
        for scheme in ("redis", "rediss", "valkey", "valkeys")
        for way in ("", "+sentinel", "+cluster")
    },
    **dict.fromkeys(("unix", "redlock", "redlocks"), "leasehold.stores.redis.openers"),
    **dict.fromkeys(("etcd", "etcds"), "leasehold.stores.etcd"),
    **dict.fromkeys(("postgresql", "postgres"), "leasehold.stores.postgres"),
    **dict.fromkeys(("mysql", "mariadb"), "leasehold.stores.mysql"),
    **dict.fromkeys(("zookeeper", "zookeepers"), "leasehold.stores.zookeeper"),
    **dict.fromkeys(("hazelcast", "hazelcasts"), "leasehold.stores.hazelcast"),
}
"""Scheme to the module with ``from_url``."""

LAYOUTS: Mapping[str, str] = {
    **{scheme: "leasehold.layouts.redis" for scheme, module in BUILT_IN.items() if module == BUILT_IN["redis"]},
    **dict.fromkeys(("postgresql", "postgres"), "leasehold.layouts.sql.postgres"),
    **dict.fromkeys(("mysql", "mariadb"), "leasehold.layouts.sql.mysql"),
}
"""Scheme to the module with ``from_url`` for URLs with ``layout=``: locks in the format of another library."""

ADOPTERS: Mapping[str, str] = {
    "psycopg": "leasehold.stores.postgres",
    "psycopg_pool": "leasehold.stores.postgres",
    "pymysql": "leasehold.stores.mysql",
    "asyncmy": "leasehold.stores.mysql",
    "redis": "leasehold.stores.redis.openers",
    "sqlalchemy": "",
}
"""Top-level package of a client object to the module with ``adopt``; for an engine see `ENGINES`."""

ENGINES = {"postgresql": ADOPTERS["psycopg"], "mysql": ADOPTERS["pymysql"], "mariadb": ADOPTERS["pymysql"]}
"""Dialect of an engine of SQLAlchemy to the module with ``adopt``."""

DRIVERS: Mapping[str, str] = {
    "redis": "redis",
    "hiredis": "redis",
    "psycopg": "postgres",
    "pymysql": "mysql",
    "asyncmy": "mysql",
    "kazoo": "zookeeper",
    "hazelcast": "hazelcast",
    "h11": "etcd",
}
"""Top-level package of a driver to the extra that installs it."""

NO_LIBPQ = (
    "psycopg finds no libpq, the C library of PostgreSQL; install one with: pip install 'leasehold[postgres]' (this "
    "brings psycopg[binary]), or install that of your system, which Debian calls libpq5"
)


def opener(url: str | Secret | None) -> Opener:
    """Return what opens the store at ``url``; None is ``LEASEHOLD_URL``, or else SQLite in the user's state folder.

    Raises:
        ValueError: malformed, or an unknown scheme or option.
        MissingDriver: the message says what to install.
    """
    hidden = hide(url)
    del url
    parsed = parse(hidden)
    if "layout" in parsed.options and parsed.scheme in LAYOUTS:
        shared: Opener = load(LAYOUTS[parsed.scheme]).from_url(parsed)
        return shared
    return factory(parsed.scheme)(parsed)


def hide(url: str | Secret | None) -> Secret:
    """Return the URL in use, in a form that a traceback with local variables does not show."""
    if isinstance(url, Secret):
        return url
    return Secret(os.environ.get("LEASEHOLD_URL") or _default_url() if url is None else url)


def _default_url() -> str:
    path = str(default_path())
    if path.startswith("~"):
        raise ValueError("there is no home directory for the default file of locks; set LEASEHOLD_URL, or HOME")
    try:
        return f"sqlite:{quote(path)}"
    except UnicodeEncodeError:
        pass
    raise ValueError(f"the path of the default file of locks, {path!r}, is not UTF-8; set LEASEHOLD_URL to another one")


def shown(url: str | Secret | None) -> str:
    """Return the URL in use without password and options, for people."""
    return str(parse(hide(url)))


def adopt(client: object, flavor: Flavor, *, strict: Strict | None = None) -> Opener:
    """Return the opener of the store that ``client``, an object of a driver, is connected to.

    A list of clients are the nodes of a Redlock.

    Raises:
        TypeError: it is not known, or of the other flavor, or has no strict mode.
    """
    if isinstance(client, list | tuple):
        several: Opener = load(ADOPTERS["redis"]).adopt_all(client, flavor, strict=strict)
        return several
    packages = [cls.__module__.partition(".")[0] for cls in type(client).__mro__]
    package = next((each for each in packages if each in ADOPTERS), "")
    if not package:
        known = ", ".join(sorted(ADOPTERS))
        raise TypeError(f"cannot make locks from a {type(client).__name__}; known are clients of: {known}")
    if strict is not None and package != "redis":
        raise TypeError(f"strict mode is one of Redis; leave out strict= for a {type(client).__name__}")
    options = {} if strict is None else {"strict": strict}
    found: Opener = load(ADOPTERS[package] or _of_engine(client)).adopt(client, flavor, **options)
    return found


def _of_engine(client: object) -> str:
    dialect = getattr(getattr(client, "dialect", None), "name", "")
    if dialect not in ENGINES:
        what = f"engine of {dialect}" if dialect else type(client).__name__
        raise TypeError(f"cannot make locks from a SQLAlchemy {what}; known are engines of: {', '.join(ENGINES)}")
    return ENGINES[dialect]


def default_path() -> Path:
    """Return the default file of locks, in the user's state folder. It begins with ``~`` if there is no home."""
    from pathlib import Path  # of the standard library, but slow to import, and no other store needs it

    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(base), "leasehold", "locks.db")


def factory(scheme: str) -> Callable[[StoreURL], Opener]:
    """Return the function that makes the openers of a scheme; its driver is imported.

    Raises:
        ValueError, MissingDriver: as `opener` does.
    """
    if scheme in BUILT_IN:
        built_in: Callable[[StoreURL], Opener] = load(BUILT_IN[scheme]).from_url
        return built_in
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    others = {point.name: point for point in entry_points(group=GROUP)}
    if scheme in others:
        other: Callable[[StoreURL], Opener] = others[scheme].load()
        return other
    known = ", ".join(sorted({*BUILT_IN, *others}))
    raise ValueError(f"unknown scheme {scheme!r} in the store URL; known are: {known}")


def load(module: str):  # type: ignore[no-untyped-def]
    """Import a module of ours that needs a driver.

    Raises:
        MissingDriver: it is not installed, or psycopg finds no libpq.
    """
    try:
        return import_module(module)
    except ImportError as error:
        driver = (error.name or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and driver in DRIVERS:
            missing = (
                f"the driver {driver!r} is not installed; install it with: pip install 'leasehold[{DRIVERS[driver]}]'"
            )
        elif error.name is None and "psycopg" in str(error):
            missing = f"{NO_LIBPQ} ({'; '.join(str(error).splitlines())})"
        else:
            raise
    raise MissingDriver(missing)  # out here it has no context

"""The counter that the demo's locks protect: kept in the store of the locks, written through `leasehold.guards`.

- PostgreSQL, MySQL and MariaDB: a row of a table.
- SQLite, and Redlock, whose servers share no value: a row of a separate SQLite file.
- One Redis server, and etcd: a key.
- All others (ZooKeeper, Redis Sentinel and Cluster, a database whose user cannot create tables): a cell of the store,
  whose write compares the token, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from leasehold.client import Client
from leasehold.stores import registry
from leasehold_lab.demo.counter_stores import ANSWERS_WITHIN, Cells, Counter, EtcdKeys, Keys, Rows
from leasehold_lab.demo.tables import table_of_a_run

CELL, REDIS, ETCD, TABLE, FILE = "cell", "redis", "etcd", "table", "file"

WORDS = {
    CELL: "a cell of the store, whose write compares the token",
    REDIS: "a key of Redis, written by leasehold.guards.redis",
    ETCD: "a key of etcd, written by leasehold.guards.etcd",
    TABLE: "a row of a table there, written by leasehold.guards.sql",
    FILE: "a row of a SQLite file, written by leasehold.guards.sql",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The kind of the counters, and the name of the table, the path of the file, or the lease in etcd."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def read(cls, text: str) -> Place:
        """Read what ``str`` wrote."""
        kind, _, name = text.partition(":")
        return cls(kind, name)

    @property
    def words(self) -> str:
        """Describe it for people."""
        return WORDS[self.kind]


@contextmanager
def prepared(client: Client, url: str, namespace: str, folder: Path) -> Generator[Place]:
    """Create the counters, and delete them at the end; those that expire stay for `COUNTER_LIFE`."""
    opener: Any = registry.opener(url)
    match _maker(opener):
        case "redis.Redis":
            yield Place(REDIS)
        case "etcd.Etcd":
            lease = EtcdKeys.make(client)
            try:
                yield Place(ETCD, str(lease))
            finally:
                EtcdKeys(client, opener.settings.root, namespace, lease).discard()
        case "postgres.Postgres" | "mysql.MySQL":
            with table_of_a_run(lambda: _connection(opener)) as name:
                yield Place(TABLE, name) if name else Place(CELL)
        case "sqlite.SQLite" | "redis.Redlock":
            path = str(folder / "page-views.db")
            with closing(Rows(_file(path), "page_views")) as rows:
                rows.create()
            yield Place(FILE, path)
        case _:
            yield Place(CELL)


def counter_at(place: Place, client: Client, url: str, namespace: str) -> Counter:
    """Return the counters that were prepared; to be closed."""
    opener: Any = registry.opener(url)
    match place.kind:
        case "redis":
            return Keys(opener.settings, namespace)
        case "etcd":
            return EtcdKeys(client, opener.settings.root, namespace, int(place.name))
        case "table":
            return Rows(_connection(opener), place.name)
        case "file":
            return Rows(_file(place.name), "page_views")
        case _:
            return Cells(client)


def _maker(opener: Any) -> str:
    """Return which store it opens, by module and class."""
    store = type(opener).__module__.removeprefix("leasehold.stores.").partition(".")[0]
    return f"{store}.{type(opener).__name__}"


def _file(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=ANSWERS_WITHIN, isolation_level=None, check_same_thread=False)


def _connection(opener: Any) -> Any:
    """Connect to the database of the locks, as a program of the user would."""
    settings = opener.settings
    if _maker(opener) == "postgres.Postgres":
        import psycopg

        return psycopg.connect(settings.conninfo().reveal(), autocommit=True, prepare_threshold=None)
    pymysql: Any = import_module("pymysql")  # untyped
    plain = {} if "ssl" in settings.options else {"ssl_disabled": True}
    return pymysql.connect(charset="utf8mb4", autocommit=True, **plain, **settings.options)

"""The floor of MySQL and MariaDB: statements over a bare connection of PyMySQL."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasehold._url import parse
from leasehold.stores.mysql.connection.settings import from_url
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.subjects.floors.rows import Rows, Run, Words

pymysql: Any = import_module("pymysql")

WORDS = Words(
    "CREATE TABLE {table} (name VARCHAR(64) PRIMARY KEY, holder VARCHAR(8), token BIGINT) ENGINE = InnoDB",
    "INSERT INTO {table} VALUES (%s, 'me', 1) ON DUPLICATE KEY UPDATE token = token + (holder IS NULL), holder = 'me'",
    "UPDATE {table} SET holder = NULL WHERE name = %s AND holder = 'me'",
)

HERE = "DATABASE()"
"""In SQL: the schema in which tables are made."""


def connect(url: str) -> Any:
    """Open a connection that commits each statement."""
    options = dict(from_url(parse(url), ("mode",)).options)
    if "ssl" not in options:
        options["ssl_disabled"] = True
    return pymysql.connect(charset="utf8mb4", autocommit=True, **options)


def blocking(scope: Scope) -> Rows:
    """Open a session for threads."""
    return Rows(scope, WORDS, connect, _run)


def _run(connection: Any) -> Run:
    execute = connection.cursor().execute
    return lambda text, args: int(execute(text, args))

"""The floor of PostgreSQL: prepared statements over a bare connection of psycopg."""

from __future__ import annotations

from typing import Any

import psycopg

from leasehold._url import parse
from leasehold.stores.postgres.connection.settings import from_url
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.subjects.floors.rows import Rows, Run, Words

WORDS = Words(
    "CREATE TABLE {table} (name text PRIMARY KEY, holder text, token bigint) WITH (fillfactor = 70)",
    "INSERT INTO {table} VALUES (%s, 'me', 1) ON CONFLICT (name) "
    "DO UPDATE SET holder = 'me', token = {table}.token + 1 WHERE {table}.holder IS NULL",
    "UPDATE {table} SET holder = NULL WHERE name = %s AND holder = 'me'",
)

HERE = "current_schema()"
"""In SQL: the schema in which tables are made."""


def connect(url: str) -> Any:
    """Open a connection that commits each statement."""
    return psycopg.connect(from_url(parse(url)).conninfo().reveal(), autocommit=True)


def blocking(scope: Scope) -> Rows:
    """Open a session for threads."""
    return Rows(scope, WORDS, connect, _run)


def _run(connection: Any) -> Run:
    execute = connection.cursor().execute
    return lambda text, args: int(execute(text, args, prepare=True).rowcount)

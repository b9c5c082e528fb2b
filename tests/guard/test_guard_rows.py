"""Guards on connections whose rows are dictionaries, as many programs have them."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql.cursors
import pytest
from psycopg.rows import dict_row

from leasehold.guards import Stale, sql


def named(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def connection(request: pytest.FixtureRequest) -> Any:
    if request.param == "sqlite":
        found: Any = sqlite3.connect(":memory:")
        found.row_factory = named
    elif request.param == "postgresql":
        found = psycopg.connect(request.getfixturevalue("postgres_server").url, row_factory=dict_row)
    else:
        found = request.getfixturevalue("mariadb_server").connect()
        found.cursorclass = pymysql.cursors.DictCursor
    return found


def test_guards_read_rows_that_are_dictionaries(connection: Any) -> None:
    cursor = connection.cursor()
    for text in ("DROP TABLE IF EXISTS shelf", "DROP TABLE IF EXISTS leasehold_fence"):
        cursor.execute(text)
    cursor.execute("CREATE TABLE shelf (item INTEGER PRIMARY KEY, n INTEGER, fence BIGINT NOT NULL DEFAULT 0)")
    cursor.execute("INSERT INTO shelf (item, n) VALUES (42, 10)")
    sql.create(connection)
    assert sql.update(connection, "shelf", {"n": 9}, where={"item": 42}, token=5) == 1
    sql.advance(connection, "shelf", 5)
    with pytest.raises(Stale):
        sql.update(connection, "shelf", {"n": 8}, where={"item": 42}, token=4)
    with pytest.raises(Stale):
        sql.advance(connection, "shelf", 4)
    connection.rollback()
    connection.close()


def test_guards_read_rows_that_are_single_values_on_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = lambda cursor, row: row[0]
    sql.create(connection)
    sql.advance(connection, "shelf", 5)
    with pytest.raises(Stale):
        sql.advance(connection, "shelf", 4)
    connection.close()

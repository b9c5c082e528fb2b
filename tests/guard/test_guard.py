"""Guards: no write of an older holder is applied after one of a newer; on every kind of database, and on files."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from leasehold.guards import Stale, sql
from leasehold.guards.connection import Answer, Statements
from leasehold_lab.servers import MariaDBServer, PostgresServer

asyncmy: Any = import_module("asyncmy")

KINDS = ["sqlite", "postgresql", "mariadb", "sqlalchemy"]


def connected(kind: str, request: pytest.FixtureRequest) -> Any:
    """Connect as a program does that commits by itself."""
    if kind == "mariadb":
        server: MariaDBServer = request.getfixturevalue("mariadb_server")
        connection = server.connect()
        connection.autocommit(False)
        return connection
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    return psycopg.connect(postgres.url)


def prepare(connection: Any) -> None:
    """Make the table of what is guarded, and no table of fences."""
    sql.run(connection, asking("DROP TABLE IF EXISTS stock"))
    sql.run(connection, asking("DROP TABLE IF EXISTS leasehold_fence"))
    create = "CREATE TABLE stock (item INTEGER PRIMARY KEY, n INTEGER, fence BIGINT NOT NULL DEFAULT 0)"
    sql.run(connection, asking(create))
    sql.run(connection, asking("INSERT INTO stock (item, n) VALUES ({}, {})", (42, 10)))
    connection.commit()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A connection with a table, in the words of each driver."""
    kind = request.param
    if kind == "sqlite":
        connection: Any = sqlite3.connect(tmp_path / "data.db")
    elif kind == "sqlalchemy":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        engine = sqlalchemy.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
        connection = engine.connect()
    else:
        connection = connected(kind, request)
    prepare(connection)
    yield connection
    connection.rollback()
    connection.close()
    if kind == "sqlalchemy":
        connection.engine.dispose()


def asking(text: str, args: tuple[Any, ...] = ()) -> Statements[Answer]:
    return (yield sql.Statement(text, args))


def row(connection: Any) -> Any:
    return sql.run(connection, asking("SELECT n, fence FROM stock WHERE item = 42")).rows[0]


def test_a_fenced_update(database: Any) -> None:
    for token, n in ((5, 9), (5, 9), (7, 8)):  # the same write twice, too
        sql.update(database, "stock", {"n": n}, where={"item": 42}, token=token)
        database.commit()
        assert row(database) == (n, token)
    with pytest.raises(Stale) as stale:
        sql.update(database, "stock", {"n": 1}, where={"item": 42}, token=6)
    assert (stale.value.token, stale.value.fence) == (6, 7)
    database.commit()
    assert row(database) == (8, 7)
    with pytest.raises(LookupError, match="no row"):
        sql.update(database, "stock", {"n": 1}, where={"item": 43}, token=8)


def test_a_fenced_update_may_change_the_columns_of_its_condition(database: Any) -> None:
    assert sql.update(database, "stock", {"n": 9}, where={"item": 42, "n": 10}, token=7) == 1
    database.commit()
    assert row(database) == (9, 7)
    with pytest.raises(Stale):
        sql.update(database, "stock", {"n": 8}, where={"item": 42, "n": 9}, token=6)
    database.commit()
    with pytest.raises(LookupError, match="no row"):
        sql.update(database, "stock", {"n": 9}, where={"item": 42, "n": 10}, token=8)
    assert row(database) == (9, 7)


def test_a_cursor_serves_as_its_connection_does(database: Any) -> None:
    if isinstance(database, sqlalchemy.Connection):
        pytest.skip("SQLAlchemy's connections have no cursor")
    with closing(database.cursor()) as cursor:
        assert sql.update(cursor, "stock", {"n": 9}, where={"item": 42}, token=7) == 1
        sql.create(cursor)
        sql.advance(cursor, "warehouse", 7)
        with pytest.raises(Stale):
            sql.advance(cursor, "warehouse", 6)
    database.rollback()


def test_a_connection_of_the_other_flavor_is_refused(database: Any) -> None:
    with pytest.raises(TypeError, match="a blocking connection, and the function needs an asyncio one"):
        asyncio.run(sql.aupdate(database, "stock", {"n": 9}, where={"item": 42}, token=7))


def test_a_fence_for_a_resource_without_a_column(database: Any) -> None:
    sql.create(database)
    sql.create(database)
    for token in (5, 5, 9):
        sql.advance(database, "warehouse/A%s{}?", token)
        database.commit()
    with pytest.raises(Stale) as stale:
        sql.advance(database, "warehouse/A%s{}?", 8)
    assert stale.value.fence == 9
    database.rollback()
    sql.advance(database, "another", 1)
    database.commit()


def test_each_resource_has_a_fence_of_its_own_however_like_another_it_looks(database: Any) -> None:
    """By case and accents, too, which many databases pass over as they compare."""
    sql.create(database)
    resources = ("doc:Ab", "doc:aB", "doc:ab", "doc:áb", "doc:a\u0301b", "doc:ß", "doc:ss", "doc:😀", "doc:😁")
    for token, resource in zip(range(90, 0, -10), resources, strict=True):  # a fence that they shared would fall
        sql.advance(database, resource, token)
    for token, resource in zip(range(90, 0, -10), resources, strict=True):
        with pytest.raises(Stale) as stale:
            sql.advance(database, resource, token - 1)
        assert stale.value.fence == token
    with pytest.raises(ValueError, match="ends with a space"):
        sql.advance(database, "doc:ab ", 1)
    database.rollback()


REFUSED = (Stale, psycopg.errors.SerializationFailure, pymysql.err.OperationalError)


def begin(connection: Any, kind: str, level: str) -> None:
    """Begin a transaction whose snapshot, if it has one, is older than what others commit from now on."""
    settings = "CHARACTERISTICS AS " if kind == "postgresql" else ""
    sql.run(connection, asking(f"SET SESSION {settings}TRANSACTION ISOLATION LEVEL {level}"))
    connection.commit()
    sql.run(connection, asking("SELECT n, fence FROM stock"))
    sql.run(connection, asking("SELECT fence FROM leasehold_fence"))


def _to_the_row(connection: Any, token: int) -> None:
    sql.update(connection, "stock", {"n": token}, where={"item": 42}, token=token)


def _to(resource: str, connection: Any, token: int) -> None:
    sql.advance(connection, resource, token)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_transaction_that_read_before_a_newer_write_is_refused(
    kind: str, level: str, request: pytest.FixtureRequest
) -> None:
    """Read, think, write, in one transaction: the guard must not go by what was there at the reading."""
    with closing(connected(kind, request)) as late, closing(connected(kind, request)) as newer:
        prepare(newer)
        sql.create(newer)
        sql.advance(newer, "report", 3)
        newer.commit()
        for write in (_to_the_row, partial(_to, "report"), partial(_to, "first use")):
            begin(late, kind, level)
            write(newer, 7)
            newer.commit()
            with pytest.raises(REFUSED, match=r"its lock was lost|concurrent|1020"):
                write(late, 5)
            late.rollback()
        assert row(newer) == (7, 7)


def test_with_snapshot_isolation_mariadb_itself_refuses_that_transaction(
    mariadb_server: MariaDBServer, request: pytest.FixtureRequest
) -> None:
    """Off by default in the release that the tests use."""
    if mariadb_server.is_mysql:
        pytest.skip("MySQL has no such setting")
    with closing(connected("mariadb", request)) as late, closing(connected("mariadb", request)) as newer:
        prepare(newer)
        sql.create(newer)
        newer.commit()
        sql.run(late, asking("SET SESSION innodb_snapshot_isolation = ON"))
        for write in (_to_the_row, partial(_to, "first use")):
            begin(late, "mariadb", "REPEATABLE READ")
            write(newer, 7)
            newer.commit()
            with pytest.raises(pymysql.err.OperationalError, match="1020"):
                write(late, 5)
            late.rollback()
        assert row(newer) == (7, 7)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"token": 0}, ValueError),
        ({"token": "7"}, TypeError),
        ({"token": True}, TypeError),
        ({"table": "stock; DROP TABLE stock"}, ValueError),
        ({"where": {}}, ValueError),
        ({"where": {"item = 1 OR 1": 1}}, ValueError),
        ({"changes": {"fence": 1}}, ValueError),
        ({"fence": "fence--"}, ValueError),
    ],
    ids=str,
)
def test_bad_input_is_refused_before_anything_is_sent(change: dict[str, Any], error: type[Exception]) -> None:
    connection = sqlite3.connect(":memory:")
    asked: dict[str, Any] = {"table": "stock", "changes": {"n": 1}, "where": {"item": 42}, "token": 7, **change}
    with pytest.raises(error):
        sql.update(connection, asked.pop("table"), asked.pop("changes"), **asked)
    connection.close()


def test_two_concurrent_writes_leave_the_higher_token(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as setup:
        sql.create(setup)
        setup.execute("DELETE FROM leasehold_fence WHERE resource = 'race'")
    refused: list[int] = []

    def write(token: int) -> None:
        with psycopg.connect(postgres_server.url) as connection:
            try:
                sql.advance(connection, "race", token)
            except Stale:
                refused.append(token)
                connection.rollback()

    threads = [threading.Thread(target=write, args=(token,)) for token in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 12 not in refused
    assert postgres_server.query("SELECT fence FROM leasehold_fence WHERE resource = 'race'") == [(12,)]


def test_asyncio(postgres_server: PostgresServer) -> None:
    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
            await connection.execute("DROP TABLE IF EXISTS stock2")
            await connection.execute("CREATE TABLE stock2 (item INTEGER, n INTEGER, fence BIGINT NOT NULL DEFAULT 0)")
            await connection.execute("INSERT INTO stock2 VALUES (42, 10)")
            assert await sql.aupdate(connection, "stock2", {"n": 9}, where={"item": 42}, token=7) == 1
            with pytest.raises(Stale):
                await sql.aupdate(connection, "stock2", {"n": 8}, where={"item": 42}, token=6)
            await sql.acreate(connection)
            await sql.aadvance(connection, "async", 7)
            with pytest.raises(Stale):
                await sql.aadvance(connection, "async", 6)
            await connection.rollback()

    asyncio.run(body())


def test_asyncio_on_mysql_after_reading(mariadb_server: MariaDBServer) -> None:
    """As above, with asyncmy, at the level that the server has."""

    async def body() -> None:
        there = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "database": "locks"}
        late, newer = [await asyncmy.connect(**there) for _ in range(2)]
        for text in (
            "DROP TABLE IF EXISTS stock3, leasehold_fence",
            "CREATE TABLE stock3 (item INTEGER, n INTEGER, fence BIGINT)",
        ):
            await sql.arun(newer, asking(text))
        await sql.arun(newer, asking("INSERT INTO stock3 VALUES (42, 10, 0)"))
        await sql.acreate(newer)
        await sql.aadvance(newer, "async", 3)
        await newer.commit()
        await sql.arun(late, asking("SELECT n, (SELECT fence FROM leasehold_fence) FROM stock3"))
        await sql.aadvance(newer, "async", 7)
        assert await sql.aupdate(newer, "stock3", {"n": 7}, where={"item": 42}, token=7) == 1
        await newer.commit()
        with pytest.raises(Stale):
            await sql.aadvance(late, "async", 5)
        with pytest.raises(Stale):
            await sql.aupdate(late, "stock3", {"n": 5}, where={"item": 42}, token=5)
        for connection in (late, newer):
            await connection.ensure_closed()

    asyncio.run(body())


def test_pymysql_is_installed() -> None:
    assert pymysql.paramstyle == "pyformat"


def test_a_change_of_what_the_rows_are_found_by(database: Any) -> None:
    """As from one state to the next: the row is no longer as given, since it was changed."""
    assert sql.update(database, "stock", {"n": 9}, where={"item": 42, "n": 10}, token=5) == 1
    with pytest.raises(LookupError):
        sql.update(database, "stock", {"n": 8}, where={"item": 42, "n": 10}, token=6)
    with pytest.raises(Stale):
        sql.update(database, "stock", {"n": 7}, where={"item": 42, "n": 9}, token=4)
    assert sql.run(database, asking("SELECT n, fence FROM stock")).rows == [(9, 5)]
    database.commit()

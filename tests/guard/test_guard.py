"""Guards: no write of an older holder follows one of a newer; on every kind of database, and on files."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from leasehold.guard import Stale, file, sql
from leasehold.testing.servers import MariaDBServer, PostgresServer

KINDS = ["sqlite", "postgresql", "mariadb", "sqlalchemy"]


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A connection with a table, in the words of each driver."""
    kind = request.param
    if kind == "sqlite":
        connection: Any = sqlite3.connect(tmp_path / "data.db")
    elif kind == "mariadb":
        server: MariaDBServer = request.getfixturevalue("mariadb_server")
        connection = server.connect()
        connection.autocommit(False)
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        if kind == "postgresql":
            connection = psycopg.connect(postgres.url)
        else:
            engine = sqlalchemy.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
            connection = engine.connect()
    sql.run(connection, asking("DROP TABLE IF EXISTS stock"))
    sql.run(connection, asking("DROP TABLE IF EXISTS leasehold_fence"))
    create = "CREATE TABLE stock (item INTEGER PRIMARY KEY, n INTEGER, fence BIGINT NOT NULL DEFAULT 0)"
    sql.run(connection, asking(create))
    sql.run(connection, asking("INSERT INTO stock (item, n) VALUES ({}, {})", (42, 10)))
    connection.commit()
    yield connection
    connection.rollback()
    connection.close()
    if kind == "sqlalchemy":
        engine.dispose()


def asking(text: str, args: tuple[Any, ...] = ()) -> Any:
    return (yield sql.Ask(text, args))


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


def test_a_fence_for_what_has_no_column(database: Any) -> None:
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


def test_two_who_write_at_once_leave_the_higher_token(postgres_server: PostgresServer) -> None:
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


# --- files -----------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_by_newer_holders_only(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    assert file.fence_of(path) == 0
    file.write(path, b"first", token=5)
    file.write(path, b"again", token=5)
    file.write(path, b"newer", token=12)
    with pytest.raises(Stale) as stale:
        file.write(path, b"older", token=7)
    assert stale.value.fence == 12
    assert path.read_bytes() == b"newer"
    assert file.fence_of(path) == 12
    assert sorted(one.name for one in tmp_path.iterdir()) == ["report.txt", "report.txt.fence"]


def _write(path: Path, token: int) -> None:
    try:
        file.write(path, b"%d" % token, token=token)
    except Stale:
        pass


def test_processes_that_write_a_file_at_once_leave_the_highest_token(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_write, args=(path, token)) for token in range(1, 9)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() == b"8"
    assert file.fence_of(path) == 8


def test_pymysql_is_there() -> None:
    assert pymysql.paramstyle == "pyformat"

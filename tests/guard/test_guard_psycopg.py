"""Guards on whatever connection or cursor of psycopg a program has: it works, or is refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from inspect import isawaitable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import args_row, dict_row, kwargs_row, namedtuple_row, scalar_row

from leasehold.guards import Stale, sql
from leasehold_lab.servers import PostgresServer

INPUTS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "scalar rows": ({"row_factory": scalar_row}, lambda connection: connection),
    "rows as dictionaries": ({"row_factory": dict_row}, lambda connection: connection),
    "named tuples": ({"row_factory": namedtuple_row}, lambda connection: connection),
    "rows as arguments": ({"row_factory": args_row(lambda *values: sum(values))}, lambda connection: connection),
    "rows as keywords": ({"row_factory": kwargs_row(dict[str, Any])}, lambda connection: connection),
    "a cursor": ({}, lambda connection: connection.cursor()),
    "a cursor of scalar rows": ({}, lambda connection: connection.cursor(row_factory=scalar_row)),
    "a server-side cursor": ({}, lambda connection: connection.cursor(name="shelf")),
    "raw cursors": ({"cursor_factory": psycopg.RawCursor}, lambda connection: connection),
    "cursors that send values as text": ({"cursor_factory": psycopg.ClientCursor}, lambda connection: connection),
}

ASYNC_CURSORS: dict[Any, Any] = {
    psycopg.RawCursor: psycopg.AsyncRawCursor,
    psycopg.ClientCursor: psycopg.AsyncClientCursor,
}


async def awaited(called: Any) -> Any:
    """Return what a call returned, or the result of the awaitable that it returned."""
    return await called if isawaitable(called) else called


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", INPUTS)
def test_a_guard_works_with_every_kind_of_cursor_and_row(
    name: str, asynchronous: bool, postgres_server: PostgresServer
) -> None:
    options, given = INPUTS[name]
    connect: Any = psycopg.AsyncConnection.connect if asynchronous else psycopg.connect
    update, advance, create = (
        (sql.aupdate, sql.aadvance, sql.acreate) if asynchronous else (sql.update, sql.advance, sql.create)
    )
    if asynchronous and "cursor_factory" in options:
        options = {"cursor_factory": ASYNC_CURSORS[options["cursor_factory"]]}

    async def body() -> None:
        connection = await awaited(connect(postgres_server.url, **options))
        await awaited(connection.execute("CREATE TEMPORARY TABLE shelf (item INT, n INT, fence BIGINT DEFAULT 0)"))
        await awaited(connection.execute("INSERT INTO shelf (item, n) VALUES (42, 10)"))
        there: Any = given(connection)
        await awaited(create(there))
        assert await awaited(update(there, "shelf", {"n": 9}, where={"item": 42}, token=5)) == 1
        with pytest.raises(Stale):
            await awaited(update(there, "shelf", {"n": 8}, where={"item": 42}, token=4))
        await awaited(advance(there, "shelf", 5))
        with pytest.raises(Stale):
            await awaited(advance(there, "shelf", 4))
        if there is not connection:
            await awaited(there.close())
        await awaited(connection.rollback())
        await awaited(connection.close())

    asyncio.run(body())


@pytest.mark.parametrize("cursor", [False, True], ids=["connection", "cursor"])
def test_pipeline_mode_is_refused_before_anything_is_sent(cursor: bool, postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        connection.execute("CREATE TEMPORARY TABLE shelf (item INT, n INT, fence BIGINT DEFAULT 0)")
        connection.execute("INSERT INTO shelf (item, n) VALUES (42, 10)")
        with connection.pipeline():
            there = connection.cursor() if cursor else connection
            with pytest.raises(ValueError, match=r"pipeline mode.* call it before or after"):
                sql.update(there, "shelf", {"n": 9}, where={"item": 42}, token=5)
        assert connection.execute("SELECT n, fence FROM shelf").fetchall() == [(10, 0)]
        assert sql.update(connection, "shelf", {"n": 9}, where={"item": 42}, token=5) == 1


@pytest.mark.parametrize("option", [{"stream_results": True}, {"yield_per": 10}], ids=str)
def test_a_connection_of_sqlalchemy_that_streams_results(
    postgres_server: PostgresServer, option: dict[str, Any]
) -> None:
    """It would run each statement by a cursor of the server."""
    engine = sqlalchemy.create_engine(postgres_server.url.replace("postgresql:", "postgresql+psycopg:"))
    with closing(engine.connect().execution_options(**option)) as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        sql.create(connection)
        sql.advance(connection, "shelf", 5)
        with pytest.raises(Stale):
            sql.advance(connection, "shelf", 4)
        connection.rollback()
    engine.dispose()

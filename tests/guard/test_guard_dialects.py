"""Guards know which database a connection leads to, however it is wrapped: MySQL needs statements of its own."""

from __future__ import annotations

import sqlite3
from typing import Any

import pymysql
import pytest
import sqlalchemy
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

from leasehold.guards import Stale, sql
from leasehold.guards.connection import dialect_of
from leasehold_lab.servers import MariaDBServer

NOWHERE = "mysql+pymysql://u:p@127.0.0.1:1/d"
ENGINE = sqlalchemy.create_engine(NOWHERE)
ASYNC_ENGINE = create_async_engine("mysql+asyncmy://u:p@127.0.0.1:1/d")


class Routed(Session):
    """As SQLAlchemy's manual routes sessions, and Flask-SQLAlchemy makes its own."""

    def get_bind(self, *_: Any, **__: Any) -> sqlalchemy.Engine:
        return ENGINE


class Base(DeclarativeBase):
    """Of mapped classes."""


class Wrapped:
    """A connection of a pool or of a tracer, of which nothing is known."""

    dialect: Any

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self) -> Any:
        return self._connection.cursor()


class Traced(Wrapped):
    """As wrapt's proxies, by which tracers wrap a driver's connections."""

    __class__: Any = pymysql.connections.Connection


class CursorWrapper:
    """As Django's cursors."""

    def __init__(self) -> None:
        self.db = type("DatabaseWrapper", (), {"vendor": "mysql"})()
        self.fetchall = None


@pytest.mark.parametrize(
    "connection",
    [
        Session(ENGINE),
        Routed(),
        scoped_session(sessionmaker(class_=Routed)),
        AsyncSession(ASYNC_ENGINE),
        AsyncSession(sync_session_class=Routed),
        async_scoped_session(async_sessionmaker(sync_session_class=Routed), lambda: 0),
        Traced(None),
        CursorWrapper(),
    ],
    ids=lambda connection: type(connection).__name__,
)
def test_mysql_is_known(connection: Any) -> None:
    assert dialect_of(connection) == "mysql"


def test_a_connection_out_of_sqlalchemys_pool_is_known(mariadb_server: MariaDBServer) -> None:
    engine = sqlalchemy.create_engine(mariadb_server.url.replace("mysql:", "mysql+pymysql:"))
    connection = engine.raw_connection()
    assert dialect_of(connection) == "mysql"
    connection.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("parent", "known"), [(PGDialect, "postgresql"), (MySQLDialect, "mysql"), (DefaultDialect, "")]
)
def test_a_dialect_of_another_name_is_known_by_what_it_derives_from(parent: type[Any], known: str) -> None:
    """As the dialect of CockroachDB, which speaks PostgreSQL's protocol."""
    connection = Wrapped(None)
    connection.dialect = type("Another", (parent,), {"name": "another"})()
    assert dialect_of(connection) == known


def test_a_session_that_does_not_know_itself_says_so() -> None:
    """It binds mapped classes only, so it has no connection for a guard either."""
    with pytest.raises(sqlalchemy.exc.UnboundExecutionError):
        sql.create(Session(binds={Base: ENGINE}))


def test_an_unknown_connection_is_refused_before_anything_is_sent() -> None:
    """By the statements of another database a stale write would count as done."""
    connection = Wrapped(sqlite3.connect(":memory:"))
    for guard in (
        lambda: sql.create(connection),
        lambda: sql.advance(connection, "x", 1),
        lambda: sql.update(connection, "t", {"n": 1}, where={"n": 2}, token=1),
    ):
        with pytest.raises(TypeError, match="which database a Wrapped leads to; pass the connection of its driver"):
            guard()
    connection._connection.close()


def test_a_stale_writer_in_a_routed_session_is_refused_after_reading(mariadb_server: MariaDBServer) -> None:
    engine = sqlalchemy.create_engine(mariadb_server.url.replace("mysql:", "mysql+pymysql:"))

    class Here(Session):
        def get_bind(self, *_: Any, **__: Any) -> sqlalchemy.Engine:
            return engine

    with Here() as late, Here() as newer:
        for text in (
            "DROP TABLE IF EXISTS stock4, leasehold_fence",
            "CREATE TABLE stock4 (item INTEGER, n INTEGER, fence BIGINT)",
            "INSERT INTO stock4 VALUES (42, 10, 0)",
        ):
            newer.execute(sqlalchemy.text(text))
        sql.create(newer)
        sql.advance(newer, "report", 3)
        newer.commit()
        late.execute(sqlalchemy.text("SELECT n, (SELECT fence FROM leasehold_fence) FROM stock4"))
        sql.advance(newer, "report", 7)
        assert sql.update(newer, "stock4", {"n": 9}, where={"item": 42}, token=7) == 1
        newer.commit()
        with pytest.raises(Stale):
            sql.update(late, "stock4", {"n": 8}, where={"item": 42}, token=5)
        with pytest.raises(Stale):
            sql.advance(late, "report", 5)
        late.rollback()
    engine.dispose()

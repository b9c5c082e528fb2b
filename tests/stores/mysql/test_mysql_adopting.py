"""Objects of a user's own drivers: how they reach the database is taken over, they are neither used nor closed."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy
from sqlalchemy import pool as pool_classes
from sqlalchemy.ext.asyncio import create_async_engine

from leasehold import AsyncClient, Client, StoreUnavailable, tables
from leasehold._runtimes.base import Flavor
from leasehold.stores import registry
from leasehold.stores.mysql.connection.adopting import from_client
from leasehold_lab.servers import MariaDBServer

pymysql: Any = import_module("pymysql")
asyncmy: Any = import_module("asyncmy")
CANARY = "hunter2-\u00e9"


def connect_arguments(url: str) -> dict[str, Any]:
    """Return the keyword arguments with which a driver connects to this URL."""
    read = urlsplit(url)
    return {"host": read.hostname, "port": read.port, "user": read.username, "database": read.path[1:]}


def test_a_connection_of_pymysql(mariadb_url: str, namespace: str) -> None:
    with (
        closing(pymysql.connect(**connect_arguments(mariadb_url), autocommit=False)) as mine,
        closing(mine.cursor()) as cursor,
    ):
        cursor.execute("CREATE TEMPORARY TABLE t (x INT)")
        cursor.execute("INSERT INTO t VALUES (1)")  # a transaction is in progress, and stays so
        session = mine.thread_id()
        with Client.from_client(mine, namespace=namespace) as locks, locks.lock("x") as hold:
            assert hold.token > 0
            with Client.from_url(mariadb_url, namespace=namespace) as others:
                assert others.lock("x").acquire(blocking=False) is None
        assert mine.open, "its owner closes it"
        mine.rollback()
        cursor.execute("SELECT count(*), connection_id() FROM t")
        assert cursor.fetchone() == (0, session), "what was not committed is not"
        with pytest.raises(TypeError, match="AsyncClient takes asyncmy's"):
            AsyncClient.from_client(mine)


def test_a_closed_connection_still_has_its_settings(mariadb_url: str, namespace: str) -> None:
    mine = pymysql.connect(**connect_arguments(mariadb_url))
    mine.close()
    with Client.from_client(mine, namespace=namespace) as locks, locks.lock("x"):
        pass


def test_a_connection_and_a_pool_of_asyncmy(mariadb_url: str, namespace: str) -> None:
    async def body() -> None:
        mine = await asyncmy.connect(**connect_arguments(mariadb_url))
        pool = await asyncmy.create_pool(**connect_arguments(mariadb_url), minsize=1, maxsize=1)
        try:
            for given in (mine, pool):
                async with AsyncClient.from_client(given, namespace=namespace) as locks, locks.lock("x") as hold:
                    assert hold.token > 0
                    async with pool.acquire() as connection, connection.cursor() as cursor:  # it is whole for its owner
                        await cursor.execute("SELECT 1")
                        assert await cursor.fetchall() == ((1,),)
                with pytest.raises(TypeError, match="Client takes PyMySQL's"):
                    Client.from_client(given)
            assert mine.connected
        finally:
            await mine.ensure_closed()
            pool.close()
            await pool.wait_closed()

    asyncio.run(body())


def test_the_password_creator_is_called_for_each_connection(mariadb_server: MariaDBServer, mariadb_url: str) -> None:
    """As in programs whose passwords expire after minutes: a password copied as text would be refused by then."""
    asked = list[str]()

    def password() -> str:
        asked.append(f"secret-{len(asked)}")
        mariadb_server.query(f"ALTER USER 'minutes'@'%' IDENTIFIED BY '{asked[-1]}'")
        return asked[-1]

    async def body() -> None:
        there = {**connect_arguments(mariadb_url), "user": "minutes", "password_creator": password}
        pool = await asyncmy.create_pool(**there, minsize=1, maxsize=1)
        try:
            before = len(asked)
            async with AsyncClient.from_client(pool, namespace="minutes") as locks, locks.lock("x"):
                assert len(asked) > before
        finally:
            pool.close()
            await pool.wait_closed()

    mariadb_server.query("CREATE USER 'minutes'@'%' IDENTIFIED BY 'first'")
    try:
        mariadb_server.query("GRANT ALL ON locks.* TO 'minutes'@'%'")
        asyncio.run(body())
    finally:
        mariadb_server.query("DROP USER 'minutes'@'%'")


def test_over_a_socket_file_and_with_tls(mariadb_server: MariaDBServer, mariadb_url: str, namespace: str) -> None:
    mariadb_server.query("CREATE USER IF NOT EXISTS 'app'@'localhost'")
    mariadb_server.query("GRANT ALL ON locks.* TO 'app'@'localhost'")
    there = {**connect_arguments(mariadb_url), "unix_socket": mariadb_server.unix_path}
    with closing(pymysql.connect(**there)) as mine:
        assert from_client(mine, Flavor.SYNC).local
        with Client.from_client(mine, namespace=namespace) as locks, locks.lock("x"):
            pass
    with MariaDBServer(password=CANARY, tls=True) as server:
        assert server.certificates is not None
        secret = {"password": CANARY.encode(), "ssl": {"ca": str(server.certificates.authority)}}
        with closing(pymysql.connect(**connect_arguments(server.url), **secret)) as mine:
            found = from_client(mine, Flavor.SYNC)
            assert "ssl" in found.options
            assert "hunter2" not in repr(found) + repr(registry.adopt(mine, Flavor.SYNC))
            tables.create(f"{server.url}?ssl_ca={server.certificates.authority}")
            with Client.from_client(mine, namespace=namespace) as locks, locks.lock("x"):
                pass


POOLS: list[dict[str, Any]] = [
    {"pool_size": 1, "max_overflow": 0},
    *({"poolclass": one} for one in (pool_classes.NullPool, pool_classes.StaticPool, pool_classes.AssertionPool)),
]


@pytest.mark.parametrize("pool", [*POOLS, {"poolclass": pool_classes.SingletonThreadPool}], ids=str)
def test_an_engine_whose_connections_are_all_in_use(mariadb_url: str, namespace: str, pool: dict[str, Any]) -> None:
    """As where each request has a connection of the engine, and then waits for a lock."""
    engine, made = sqlalchemy.create_engine(mariadb_url.replace("mysql:", "mysql+pymysql:"), **pool), list[Any]()
    sqlalchemy.event.listen(engine, "connect", lambda connection, _: made.append(connection))
    try:
        with engine.connect() as mine:
            session = mine.exec_driver_sql("SELECT connection_id()").scalar()
            with Client.from_client(engine, namespace=namespace, response_timeout=2.0) as locks:
                start = time.monotonic()
                with locks.lock("x"):
                    assert time.monotonic() - start < 2
                    assert len(made) > 1
            assert mine.exec_driver_sql("SELECT connection_id()").scalar() == session, "it is still its owner's"
    finally:
        engine.dispose()


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_an_asyncio_engine_whose_connections_are_all_in_use(
    mariadb_url: str, namespace: str, pool: dict[str, Any]
) -> None:
    async def body() -> None:
        engine = create_async_engine(mariadb_url.replace("mysql:", "mysql+asyncmy:"), **pool)
        async with engine.connect() as mine:
            session = (await mine.exec_driver_sql("SELECT connection_id()")).scalar()
            async with (
                AsyncClient.from_client(engine, namespace=namespace, response_timeout=2.0) as locks,
                asyncio.timeout(2),
                locks.lock("x"),
            ):
                pass
            assert (await mine.exec_driver_sql("SELECT connection_id()")).scalar() == session
        await engine.dispose()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (sqlalchemy.exc.TimeoutError("no connection in 3 s"), "no connection in 3 s"),
        (sqlalchemy.exc.OperationalError("SELECT", {}, pymysql.OperationalError(1040, "Too many")), "max_connections"),
    ],
)
def test_errors_of_sqlalchemy_itself(mariadb_url: str, raised: Exception, said: str) -> None:
    """It asks each server for its version, and a creator may take connections out of another pool."""

    def connect() -> Any:
        raise raised

    engine = sqlalchemy.create_engine(mariadb_url.replace("mysql:", "mysql+pymysql:"), creator=connect)
    with Client.from_client(engine) as locks, pytest.raises(StoreUnavailable, match=said) as caught:
        locks.lock("x").acquire(blocking=False)
    assert not caught.value.unknown


def test_an_object_that_cannot_be_adopted_is_refused_with_the_reason(mariadb_url: str) -> None:
    there = connect_arguments(mariadb_url)
    del there["database"]
    with closing(pymysql.connect(**there)) as mine:
        with pytest.raises(ValueError, match="names no database"):
            Client.from_client(mine)
        with closing(mine.cursor()) as cursor, pytest.raises(TypeError, match="a connection of PyMySQL"):
            Client.from_client(cursor)

    async def over_a_socket() -> None:
        driver: Any = import_module("asyncmy.connection")
        made_elsewhere = driver.Connection(**connect_arguments(mariadb_url), sock=object())
        with pytest.raises(ValueError, match="made elsewhere"):
            AsyncClient.from_client(made_elsewhere)

    asyncio.run(over_a_socket())

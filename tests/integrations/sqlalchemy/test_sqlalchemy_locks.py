"""Locks in the transaction of a SQLAlchemy session, on real servers, in both flavors."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from leasehold import AcquireTimeout, Client, Unsupported
from leasehold.integrations.sqlalchemy import async_transaction_lock, transaction_lock
from leasehold_lab.servers import PostgresServer

COMMITTED = {"isolation_level": "READ COMMITTED"}


@pytest.fixture(params=["postgresql", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a server, as the store of leasehold has it."""
    if request.param == "mysql":
        found: str = request.getfixturevalue("mariadb_url")
        return found
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.url


def for_sqlalchemy(url: str, *, asynchronous: bool = False) -> str:
    my = "asyncmy" if asynchronous else "pymysql"
    return url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", f"mysql+{my}:")


@pytest.fixture
def engine(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(for_sqlalchemy(url), **COMMITTED)
    yield engine
    engine.dispose()


@pytest.fixture
def free(url: str, namespace: str) -> Iterator[Callable[[], bool]]:
    """Return a function that says whether another session could have the lock."""
    engine = sqlalchemy.create_engine(for_sqlalchemy(url), poolclass=sqlalchemy.NullPool, **COMMITTED)

    def ask() -> bool:
        with Session(engine) as other:
            try:
                transaction_lock(other, "x", namespace=namespace, timeout=0)
            except AcquireTimeout:
                return False
            return True

    return ask


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_it_is_held_to_the_end_of_the_transaction(
    engine: sqlalchemy.Engine, namespace: str, free: Callable[[], bool], end: str
) -> None:
    session = Session(engine)
    transaction_lock(session, "x", namespace=namespace, timeout=1)
    transaction_lock(session, "x", namespace=namespace, timeout=1)  # a second time does no harm
    assert not free()
    getattr(session, end)()
    assert free()
    transaction_lock(session, "x", namespace=namespace, timeout=1)  # the next transaction, on the same connection
    assert not free()
    session.close()


def test_it_ends_with_a_session_that_nobody_closed(
    engine: sqlalchemy.Engine, namespace: str, free: Callable[[], bool]
) -> None:
    session = Session(engine)
    transaction_lock(session, "x", namespace=namespace, timeout=1)
    assert not free()
    del session
    gc.collect()
    assert free()


def fail_in_block(make: sessionmaker[Session], namespace: str) -> None:
    with make.begin() as session:
        transaction_lock(session, "x", namespace=namespace)
        _ = 1 / 0


def test_the_block_that_begins_a_transaction(
    engine: sqlalchemy.Engine, namespace: str, free: Callable[[], bool]
) -> None:
    make = sessionmaker(engine)
    with make.begin() as session:
        transaction_lock(session, "x", namespace=namespace)
        assert not free()
    assert free()
    with pytest.raises(ZeroDivisionError):
        fail_in_block(make, namespace)
    assert free()
    scoped = scoped_session(make)
    transaction_lock(scoped, "x", namespace=namespace)
    assert not free()
    scoped.remove()
    assert free()


def test_savepoints(engine: sqlalchemy.Engine, namespace: str, free: Callable[[], bool]) -> None:
    """One before a savepoint stays; PostgreSQL undoes one after it together with the writes after it."""
    with Session(engine) as session:
        transaction_lock(session, "x", namespace=namespace)
        with session.begin_nested() as savepoint:
            savepoint.rollback()
        assert not free()
        session.commit()
        assert free()
        with session.begin_nested():
            transaction_lock(session, "x", namespace=namespace)
        assert not free()
        session.commit()
        with session.begin_nested() as savepoint:
            transaction_lock(session, "x", namespace=namespace)
            savepoint.rollback()
        assert free() is (engine.dialect.name == "postgresql")
        session.commit()
        assert free()


def test_a_timeout_leaves_the_transaction_unchanged(
    engine: sqlalchemy.Engine, namespace: str, free: Callable[[], bool]
) -> None:
    with Session(engine) as one, Session(engine) as other:
        transaction_lock(one, "x", namespace=namespace)
        other.execute(sqlalchemy.text("CREATE TEMPORARY TABLE mine (n INTEGER)"))
        other.execute(sqlalchemy.text("INSERT INTO mine VALUES (1)"))
        for timeout in (0, 0.2, 1.1):
            with pytest.raises(AcquireTimeout, match="could not acquire 'x'"):
                transaction_lock(other, "x", namespace=namespace, timeout=timeout)
        assert other.execute(sqlalchemy.text("SELECT n FROM mine")).scalar() == 1
        one.commit()
        transaction_lock(other, "x", namespace=namespace, timeout=5)
        assert not free()


def test_the_same_name_excludes_clients_with_sessions(engine: sqlalchemy.Engine, url: str, namespace: str) -> None:
    with Client.from_url(f"{url}?mode=session", namespace=namespace) as locks, Session(engine) as session:
        transaction_lock(session, "x", namespace=namespace)
        assert locks.lock("x").acquire(timeout=0) is None
        session.commit()
        hold = locks.lock("x").acquire(timeout=5)
        assert hold is not None
        with pytest.raises(AcquireTimeout):
            transaction_lock(session, "x", namespace=namespace, timeout=0)
        session.rollback()
        hold.release()


ADD = """
import sys
import sqlalchemy
from sqlalchemy.orm import Session
from leasehold.integrations.sqlalchemy import transaction_lock
url, namespace, table = sys.argv[1:]
engine = sqlalchemy.create_engine(url, isolation_level="READ COMMITTED")
for _ in range(50):
    with Session(engine) as session, session.begin():
        transaction_lock(session, "x", namespace=namespace)
        (n,) = session.execute(sqlalchemy.text(f"SELECT n FROM {table}")).one()
        session.execute(sqlalchemy.text(f"UPDATE {table} SET n = {n + 1}"))
"""


def test_no_update_is_lost_between_processes(engine: sqlalchemy.Engine, url: str, namespace: str) -> None:
    table = "t_" + re.sub(r"\W", "_", namespace)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} (n INTEGER)")
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES (0)")
    command = [sys.executable, "-c", ADD, for_sqlalchemy(url), namespace, table]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    with engine.begin() as connection:
        assert connection.exec_driver_sql(f"SELECT n FROM {table}").scalar() == 150
        connection.exec_driver_sql(f"DROP TABLE {table}")


def test_a_killed_process_frees_it(url: str, namespace: str, engine: sqlalchemy.Engine) -> None:
    code = """
import sys, time, sqlalchemy
from sqlalchemy.orm import Session
from leasehold.integrations.sqlalchemy import transaction_lock
with Session(sqlalchemy.create_engine(sys.argv[1], isolation_level="READ COMMITTED")) as session:
    transaction_lock(session, "x", namespace=sys.argv[2])
    print("held", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", code, for_sqlalchemy(url), namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder, Session(engine) as session:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AcquireTimeout):
            transaction_lock(session, "x", namespace=namespace, timeout=0)
        holder.kill()
        transaction_lock(session, "x", namespace=namespace, timeout=20)


def test_a_session_that_ended_breaks_no_later_one(
    engine: sqlalchemy.Engine, namespace: str, free: Callable[[], bool]
) -> None:
    """The server ends the database session: the commit fails, and the connection is not used again."""
    ends = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}[engine.dialect.name]
    mine = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}[engine.dialect.name]
    session = Session(engine)
    transaction_lock(session, "x", namespace=namespace)
    number = session.execute(sqlalchemy.text(f"SELECT {mine}")).scalar()
    with engine.connect() as other:
        other.exec_driver_sql(ends.format(number))
    with pytest.raises(sqlalchemy.exc.OperationalError):
        session.commit()
    session.invalidate()
    with Session(engine) as later:
        transaction_lock(later, "x", namespace=namespace, timeout=5)
        assert not free()


def test_asyncio(url: str, namespace: str, free: Callable[[], bool]) -> None:
    async def body() -> None:
        engine = create_async_engine(for_sqlalchemy(url, asynchronous=True), **COMMITTED)
        async with AsyncSession(engine) as one, AsyncSession(engine) as two:
            for end in ("commit", "rollback"):
                await async_transaction_lock(one, "x", namespace=namespace, timeout=1)
                assert not await asyncio.to_thread(free)
                with pytest.raises(AcquireTimeout):
                    await async_transaction_lock(two, "x", namespace=namespace, timeout=0.2)
                waits = asyncio.ensure_future(async_transaction_lock(two, "x", namespace=namespace))
                await asyncio.sleep(0.1)
                waits.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waits
                await two.close()
                await getattr(one, end)()
                assert await asyncio.to_thread(free)
            async with one.begin():
                await async_transaction_lock(one, "x", namespace=namespace, timeout=1)
                assert not await asyncio.to_thread(free)
            assert await asyncio.to_thread(free)
        await engine.dispose()

    asyncio.run(body())


def test_what_cannot_be_promised_is_refused(mariadb_url: str, postgres_server: PostgresServer, namespace: str) -> None:
    mysql = sqlalchemy.create_engine(for_sqlalchemy(mariadb_url))
    with Session(mysql) as session, pytest.raises(Unsupported, match=r"REPEATABLE READ.*isolation_level"):
        transaction_lock(session, "x", namespace=namespace)
    committed = mysql.execution_options(isolation_level="READ COMMITTED")
    with Session(committed) as session, pytest.raises(Unsupported, match="no shared locks"):
        transaction_lock(session, "x", namespace=namespace, shared=True)
    with committed.connect() as connection:
        with pytest.raises(TypeError, match="needs a session"):
            transaction_lock(connection, "x", namespace=namespace)
        with Session(connection) as session, pytest.raises(TypeError, match="bound to an engine"):
            transaction_lock(session, "x", namespace=namespace)
    for url in (for_sqlalchemy(mariadb_url), for_sqlalchemy(postgres_server.url)):
        each = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with Session(each) as session, pytest.raises(RuntimeError, match="transaction_lock needs a transaction"):
            transaction_lock(session, "x", namespace=namespace)
        each.dispose()
    lite: Any = sqlalchemy.create_engine("sqlite://")
    with Session(lite) as session, pytest.raises(Unsupported, match="BEGIN IMMEDIATE"):
        transaction_lock(session, "x")
    mysql.dispose()
    lite.dispose()

"""`transaction_lock`: held to the end of the user's own transaction, on whatever connection they have."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
from psycopg.rows import dict_row, namedtuple_row

from leasehold import AcquireTimeout, Client, Unsupported
from leasehold.postgres import async_transaction_lock, transaction_lock
from leasehold_lab.servers import PostgresServer
from support.missed_turns import turns_missed
from support.steps import TO_THE_END, after_steps

NOISE = 1.0


def free(url: str, namespace: str) -> bool:
    with psycopg.connect(url) as other:
        try:
            transaction_lock(other, "x", namespace=namespace, timeout=0)
        except AcquireTimeout:
            return False
        return True


@pytest.mark.parametrize("how", ["connection", "cursor", "engine", "session"])
def test_the_lock_is_held_to_the_end_of_the_transaction(
    postgres_server: PostgresServer, namespace: str, how: str
) -> None:
    url = postgres_server.url
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with psycopg.connect(url) as plain, engine.connect() as connection, sqlalchemy.orm.Session(engine) as session:
        mine: dict[str, Any] = {"connection": plain, "cursor": plain.cursor(), "engine": connection, "session": session}
        for end in ("commit", "rollback"):
            transaction_lock(mine[how], "x", namespace=namespace, timeout=1)
            assert not free(url, namespace)
            getattr({"cursor": plain}.get(how, mine[how]), end)()
            assert free(url, namespace)
    engine.dispose()


def test_a_timeout_leaves_the_transaction_unchanged(postgres_server: PostgresServer, namespace: str) -> None:
    with psycopg.connect(postgres_server.url) as holder, psycopg.connect(postgres_server.url) as other:
        transaction_lock(holder, "x", namespace=namespace)
        transaction_lock(holder, "x", namespace=namespace)  # a second time in one transaction does no harm
        other.execute("SET LOCAL lock_timeout = '7s'")
        other.execute("CREATE TEMPORARY TABLE mine (n INTEGER)")
        other.execute("INSERT INTO mine VALUES (1)")
        start = time.monotonic()
        with pytest.raises(AcquireTimeout):
            transaction_lock(other, "x", namespace=namespace, timeout=0.3)
        assert 0.2 < time.monotonic() - start < 0.3 + NOISE
        assert other.execute("SELECT n FROM mine").fetchone() == (1,)
        assert other.execute("SHOW lock_timeout").fetchone() == ("7s",)
        thread = threading.Thread(target=lambda: (time.sleep(0.2), holder.commit()))
        thread.start()
        transaction_lock(other, "x", namespace=namespace, timeout=5)
        thread.join()
        assert other.execute("SHOW lock_timeout").fetchone() == ("7s",)
        assert not free(postgres_server.url, namespace)


HOLDER = """
import asyncio, sys, time
import psycopg
from leasehold.postgres import async_transaction_lock, transaction_lock

url, namespace, flavor = sys.argv[1:]
write = f"INSERT INTO {namespace} VALUES (1)"

async def hold():
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await async_transaction_lock(connection, "x", namespace=namespace)
        await connection.execute(write)
        print("held", flush=True)
        await asyncio.sleep(60)

if flavor == "asyncio":
    asyncio.run(hold())
with psycopg.connect(url) as connection:
    transaction_lock(connection, "x", namespace=namespace)
    connection.execute(write)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("flavor", ["blocking", "asyncio"])
def test_a_killed_holders_lock_is_free_at_once_and_its_writes_are_undone(
    postgres_server: PostgresServer, namespace: str, flavor: str
) -> None:
    """Within the 0.25 s that the page states."""
    url, space = postgres_server.url, namespace.replace("-", "_")
    with psycopg.connect(url) as mine, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE TABLE {space} (n INTEGER)")
        command = [sys.executable, "-c", HOLDER, url, space, flavor]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder, turns_missed() as missed:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(AcquireTimeout):
                transaction_lock(mine, "x", namespace=space, timeout=0)
            threading.Timer(0.5, holder.kill).start()
            began = time.monotonic()
            transaction_lock(mine, "x", namespace=space, timeout=20)
            took = time.monotonic() - began - 0.5
            print(f"free {took:.3f} s after the kill")
        assert took < 0.25 + missed.total()
        assert mine.execute(f"SELECT count(*) FROM {space}").fetchone() == (0,)
        mine.commit()
        owner.execute(f"DROP TABLE {space}")


def test_cancelled_at_each_step_it_leaves_no_lock_and_a_connection_in_step(
    postgres_server: PostgresServer, namespace: str
) -> None:
    """Whether it had the lock or not: after the owner's rollback all is as before, and answers are those asked for."""
    url = postgres_server.url

    async def body() -> None:
        outcomes = set[bool]()
        async with (
            await psycopg.AsyncConnection.connect(url) as mine,
            await psycopg.AsyncConnection.connect(url) as other,
        ):
            for taken in (False, True):
                for k in (*range(24), *(() if taken else (TO_THE_END,))):
                    if taken:
                        await async_transaction_lock(other, "x", namespace=namespace, timeout=5)
                    task = asyncio.ensure_future(async_transaction_lock(mine, "x", namespace=namespace))
                    await after_steps(k, task)
                    outcomes.add(task.cancelled())
                    await other.rollback()
                    await mine.rollback()
                    assert await asyncio.to_thread(free, url, namespace), (taken, k)
                    found = await (await mine.execute("SELECT %s::int", (k,))).fetchone()
                    assert found == (k,), "the answer to another question"
                    await mine.rollback()
        assert outcomes == {True, False}

    asyncio.run(body())


def test_readers_share_and_sessions_are_excluded(postgres_server: PostgresServer, namespace: str) -> None:
    url = postgres_server.url
    with psycopg.connect(url) as one, psycopg.connect(url) as two:
        transaction_lock(one, "x", namespace=namespace, shared=True)
        transaction_lock(two, "x", namespace=namespace, shared=True, timeout=0)
        assert not free(url, namespace)
        with Client.from_url(f"{url}?mode=session", namespace=namespace) as locks:
            assert locks.lock("x").acquire(timeout=0.2) is None
            one.commit()
            two.commit()
            hold = locks.lock("x").acquire(timeout=2)
            assert hold is not None
            assert not free(url, namespace)
            hold.release()
            assert free(url, namespace)


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row], ids=["dictionaries", "named tuples"])
def test_rows_may_be_of_whatever_kind(postgres_server: PostgresServer, namespace: str, factory: Any) -> None:
    with psycopg.connect(postgres_server.url, row_factory=factory) as one, psycopg.connect(postgres_server.url) as two:
        transaction_lock(two, "x", namespace=namespace)
        with pytest.raises(AcquireTimeout):
            transaction_lock(one, "x", namespace=namespace, timeout=0.05)
        two.rollback()
        transaction_lock(one, "x", namespace=namespace, timeout=5)
        assert not free(postgres_server.url, namespace)


def test_a_standby_is_refused(server: PostgresServer) -> None:
    """A standby has its own locks: a session on the primary has the same lock."""
    server.terminate()
    (server.data / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url) as connection:
        with pytest.raises(Unsupported, match="standby"):
            transaction_lock(connection, "x", timeout=0)
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_connections_and_isolation_levels_without_protection_are_refused(
    postgres_server: PostgresServer, namespace: str
) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        with pytest.raises(RuntimeError, match="needs a transaction"):
            transaction_lock(connection, "x", namespace=namespace)
        with connection.transaction():
            transaction_lock(connection, "x", namespace=namespace, timeout=0)
        connection.isolation_level = psycopg.IsolationLevel.READ_UNCOMMITTED  # which PostgreSQL has only by name
        with connection.transaction():
            transaction_lock(connection, "x", namespace=namespace, timeout=0)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction(), pytest.raises(Unsupported, match="READ COMMITTED"):
            transaction_lock(connection, "x", namespace=namespace, timeout=0)
        with pytest.raises(ValueError, match="name"):
            transaction_lock(connection, "", namespace=namespace)
    import sqlite3

    lite = sqlite3.connect(":memory:")
    with pytest.raises(TypeError, match="sqlite"):
        transaction_lock(lite, "x")
    lite.close()


@pytest.mark.parametrize("how", ["connection", "engine", "session"])
def test_asyncio(postgres_server: PostgresServer, namespace: str, how: str) -> None:
    url = postgres_server.url

    async def body() -> None:
        engine = sqlalchemy.ext.asyncio.create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        async with await psycopg.AsyncConnection.connect(url) as plain, engine.connect() as connection:
            session = sqlalchemy.ext.asyncio.AsyncSession(engine)
            mine: Any = {"connection": plain, "engine": connection, "session": session}[how]
            await async_transaction_lock(mine, "x", namespace=namespace, timeout=1)
            assert not await asyncio.to_thread(free, url, namespace)
            async with await psycopg.AsyncConnection.connect(url) as other:
                with pytest.raises(AcquireTimeout):
                    await async_transaction_lock(other, "x", namespace=namespace, timeout=0.1)
                waiting = asyncio.ensure_future(async_transaction_lock(other, "x", namespace=namespace))
                await asyncio.sleep(0.1)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await mine.rollback()
            assert await asyncio.to_thread(free, url, namespace)
            await session.close()
        await engine.dispose()

    asyncio.run(body())

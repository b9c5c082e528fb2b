"""PostgreSQL from outside: URLs, a user's own objects, poolers, rights, tables, the doctor."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio

from leasehold import AsyncClient, Client, StoreUnavailable, Unsupported, tables
from leasehold._model import Finding, Severity
from leasehold.stores import registry
from leasehold.stores.postgres.statements import script
from leasehold.stores.registry import opener
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PgBouncerServer, PostgresServer
from support.flavors import both

PAGE = Path(__file__).parents[3] / "docs" / "backends" / "postgresql.md"


# --- URLs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://app@db:5433/orders", "db:5433/orders"),
        ("postgres://app@db/orders", "db:5432/orders"),
        ("postgresql://a,b:6000/orders?target_session_attrs=read-write", "a:5432,b:6000/orders"),
        ("postgresql://[::1]:5433/orders", "[::1]:5433/orders"),
        ("postgresql:///orders?host=/run/postgresql", "/run/postgresql/orders"),
    ],
)
def test_urls(url: str, where: str) -> None:
    found: Any = opener(url)
    assert found.settings.where == where


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql:app@db/orders", "two slashes"),
        ("postgresql://db/orders?nosuch=1", "unknown option 'nosuch'"),
        ("postgresql://db/orders?pool=0", "'pool'"),
        ("postgresql://db/orders?messages=maybe", "'messages'"),
        ("postgresql://db/orders?mode=nosuch", "rows, session"),
        ("postgresql://db/orders?mode=transaction", "transaction_lock"),
        ("postgresql://db/orders?pooler=1", "'pooler'"),
        ("postgresql://db/orders?listen=", "'listen'"),
        ("postgresql://db/orders?listen=a,b", "'listen'"),
        ("postgresql://db/orders?listen=a:b", "'listen'"),
        ("postgresql://db/orders?listen=::1", "'listen'"),
        ("postgresql://db/orders?listen=db2&messages=0", "needs messages"),
        ("postgresql://db/orders?password=x", "unknown option 'password'"),
    ],
)
def test_bad_urls_are_refused_before_anything_is_sent(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        opener(url)


# --- objects of the user ---------------------------------------------------------------------------------------


def works(client: Client) -> None:
    with client:
        hold = client.lock("x").acquire(timeout=5)
        assert hold is not None
        assert client.lock("x").acquire(timeout=0.1) is None
        hold.release()


def test_blocking_objects(namespace: str) -> None:
    with PostgresServer(password="p a'ss") as server:
        server.execute(script())
        with psycopg.connect(server.url) as connection:
            works(Client.from_client(connection, namespace=namespace))
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with psycopg_pool.ConnectionPool(server.url, min_size=1, open=True) as pool:
            works(Client.from_client(pool, namespace=namespace))
        for driver in ("psycopg", "psycopg_async"):
            url = sqlalchemy.make_url(server.url).set(drivername=f"postgresql+{driver}")
            if driver == "psycopg":
                engine = sqlalchemy.create_engine(url)
                works(Client.from_client(engine, namespace=namespace))
                engine.dispose()


def test_asyncio_objects(postgres_server: PostgresServer, namespace: str) -> None:
    url = postgres_server.url

    async def works(client: AsyncClient) -> None:
        async with client, client.lock("x", timeout=5):
            pass

    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await works(AsyncClient.from_client(connection, namespace=namespace))
            with pytest.raises(TypeError, match="does not fit"):
                Client.from_client(connection)
        async with psycopg_pool.AsyncConnectionPool(url, min_size=1, open=False) as pool:
            await works(AsyncClient.from_client(pool, namespace=namespace))
        engine = sqlalchemy.ext.asyncio.create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        await works(AsyncClient.from_client(engine, namespace=namespace))
        with pytest.raises(TypeError, match="does not fit"):
            Client.from_client(engine)
        await engine.dispose()

    asyncio.run(body())


def test_objects_that_do_not_lead_to_a_server_are_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(TypeError, match="sqlite"):
        Client.from_client(engine)
    with pytest.raises(TypeError, match="SQLAlchemy"):
        Client.from_client(sqlalchemy.MetaData())
    engine.dispose()
    assert {"psycopg", "psycopg_pool", "sqlalchemy"} <= set(registry.ADOPTERS)


# --- poolers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncerServer]:
    with PgBouncerServer(postgres_server) as server:
        yield server


def test_lease_rows_work_behind_a_pooler_of_transactions(pooler: PgBouncerServer, namespace: str) -> None:
    """Without messages: waiters look by themselves. Nothing of ours sticks to the sessions of others."""
    with (
        Client.from_url(pooler.url, namespace=namespace) as one,
        Client.from_url(pooler.url, namespace=namespace) as two,
    ):
        tokens: list[int] = []

        def take(locks: Client) -> None:
            for _ in range(10):
                with locks.lock("x", timeout=20) as hold:
                    tokens.append(hold.token)

        threads = [threading.Thread(target=take, args=(locks,)) for locks in (one, two, one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tokens) == 40
        assert tokens == sorted(tokens)
        found = {finding.subject: finding for finding in one.diagnose()}
        assert found["pooler"].found == "in between"
    with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as other:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            shown = other.execute(f"SHOW {name}").fetchone()
            assert shown == ("0",)


@both
def test_messages_come_past_a_pooler(
    pooler: PgBouncerServer, postgres_server: PostgresServer, namespace: str, harness: Harness
) -> None:
    """A waiter gets its messages from the server itself; all other traffic goes through the pooler."""

    async def body(harness: Harness) -> None:
        url = f"{pooler.url}?listen=127.0.0.1:{postgres_server.port}"
        one, two = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = await one.lock("x", lease=30.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: two.lock("x", lease=30.0).acquire(timeout=20))
        transport: Any = two.store._transport  # type: ignore[attr-defined]
        until = harness.now() + 5
        while (info := await one.inspect("x")) is None or not info.waiters or not transport.channel:
            assert harness.now() < until
            await harness.sleep(0.01)
        assert transport.facts["pooled"]
        await harness.sleep(0.3)
        await hold.release()
        freed = harness.now()
        got = await job.result()
        assert got is not None
        assert harness.now() - freed < 2.0, "a look comes as rarely as twice a second, a renewal after ten"
        assert two.store._waiting._poller._job is None, "no poller runs"  # type: ignore[attr-defined]
        await got.release()
        found = {finding.subject: finding for finding in await one.diagnose()}
        assert "bypass it" in found["pooler"].meaning

    harness.run(body)


@both
def test_messages_of_another_database_are_refused(pooler: PgBouncerServer, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        with PostgresServer() as another:
            url = f"{pooler.url}?listen=127.0.0.1:{another.port}"
            one, two = (harness.client(url, namespace=namespace) for _ in range(2))
            hold = await one.lock("x").acquire(timeout=5)
            assert hold is not None
            with pytest.raises(StoreUnavailable, match="listen= leads to another database"):
                await two.lock("x").acquire(timeout=10)
            await hold.release()

    harness.run(body)


def test_sessions_behind_a_pooler_are_refused_with_the_remedy(
    pooler: PgBouncerServer, postgres_server: PostgresServer, namespace: str
) -> None:
    with (
        Client.from_url(f"{pooler.url}?mode=session", namespace=namespace) as locks,
        pytest.raises(Unsupported, match=r"transaction_lock.*pooler=session"),
    ):
        locks.lock("x").acquire(timeout=1)
    with PgBouncerServer(postgres_server, mode="session") as sessions:
        url = f"{sessions.url}?mode=session&pooler=session"
        with Client.from_url(url, namespace=namespace) as locks:
            hold = locks.lock("x").acquire(timeout=5)
            assert hold is not None
            assert locks.lock("x").acquire(timeout=0.1) is None
            hold.release()


# --- tables and rights -----------------------------------------------------------------------------------------


def test_the_tables_are_created_on_request_and_concurrently() -> None:
    with PostgresServer() as server:
        with Client.from_url(server.url) as locks, pytest.raises(StoreUnavailable, match="leasehold init"):
            locks.lock("x").acquire(timeout=1)
        made: list[bool] = []
        threads = [threading.Thread(target=lambda: made.append(tables.create(server.url))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 4
        assert asyncio.run(tables.create_async(server.url)) is False
        with Client.from_url(server.url) as locks, locks.lock("x", timeout=5):
            pass
        command = [sys.executable, "-m", "leasehold", "init"]
        printed = subprocess.run([*command, "--print", server.url], capture_output=True, text=True, check=True).stdout
        assert printed == script() == tables.script(server.url)
        again = subprocess.run([*command, server.url], capture_output=True, text=True, check=True)
        assert "nothing was missing" in again.stderr
    with pytest.raises(ValueError, match="no tables"):
        tables.create("memory:")


def grants() -> str:
    """Return the GRANT statements of the documentation."""
    found = re.search(r"```sql\n(.*?GRANT.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_rights_suffice_and_each_is_needed() -> None:
    with PostgresServer() as server:
        server.execute(script())
        server.execute("CREATE ROLE app LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC")
        url = server.url.replace("postgres@", "app@")
        server.execute(grants())
        with Client.from_url(url) as locks, Client.from_url(f"{url}?mode=session") as sessions:
            for client in (locks, sessions):
                hold = client.lock("x").acquire(timeout=5)
                assert hold is not None
                hold.renew()
                assert client.inspect("x") is not None
                hold.release()
                assert max(finding.severity for finding in client.diagnose()) < Severity.ERROR
            locks.versioned("v").put(1)
        server.execute("REVOKE UPDATE ON leasehold_name FROM app")
        with Client.from_url(url) as locks:
            with pytest.raises(StoreUnavailable, match=r"42501.*docs/backends/postgresql.md"):
                locks.lock("x").acquire(timeout=1)
            errors = [finding for finding in locks.diagnose() if finding.severity is Severity.ERROR]
        assert [(error.subject, error.found) for error in errors] == [("rights on leasehold_name", "missing: UPDATE")]


# --- the doctor ------------------------------------------------------------------------------------------------


def examine(url: str) -> dict[str, Finding]:
    with Client.from_url(url) as locks:
        return {finding.subject: finding for finding in locks.diagnose()}


def test_the_doctor_explains_settings() -> None:
    with PostgresServer(config={"synchronous_commit": "off"}) as server:
        bare = examine(server.url)
        assert bare["tables"].severity is Severity.ERROR
        assert "leasehold init" in bare["tables"].remedy
        server.execute(script())
        found = examine(server.url)
        assert found["tables"].severity is Severity.OK
        assert found["synchronous_commit"].severity is Severity.WARNING
        assert found["fsync"].severity is Severity.WARNING
        assert found["server"].found.startswith("PostgreSQL ")
        assert found["pooler"].found == "none"


# --- what is stored --------------------------------------------------------------------------------------------


def test_unused_names_and_cells_are_dropped_and_tokens_still_increase(namespace: str) -> None:
    """On a server of its own: a step of the sweep looks at 64 names, and other tests leave many."""
    with PostgresServer() as server:
        server.execute(script())
        forgets_what_nobody_uses(server, namespace)


def forgets_what_nobody_uses(postgres_server: PostgresServer, namespace: str) -> None:
    with Client.from_url(postgres_server.url, namespace=namespace) as locks:
        hold = locks.lock("old").acquire(timeout=5)
        assert hold is not None
        token = hold.token
        hold.release()
        locks.versioned("cell", ttl=0.01).put(1)
        hour = 2 * 3600 * 10**9
        far = token + 10**15
        postgres_server.query(
            "UPDATE leasehold_name SET used = used - %s, fence = %s WHERE space = %s RETURNING 1",
            (hour, far, namespace.encode()),
        )
        for _ in range(300):
            with locks.lock("busy", timeout=5):
                pass
        left = postgres_server.query("SELECT name FROM leasehold_name WHERE space = %s", (namespace.encode(),))
        assert left == [(b"busy",)]
        assert postgres_server.query("SELECT 1 FROM leasehold_cell WHERE space = %s", (namespace.encode(),)) == []
        with locks.lock("old", timeout=5) as again:
            assert again.token > far
        postgres_server.query("UPDATE leasehold_meta SET fence = 0 RETURNING 1")

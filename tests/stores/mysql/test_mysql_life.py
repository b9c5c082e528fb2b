"""MySQL in everyday life: URLs, what an operation costs, rights, engines of SQLAlchemy, TLS, exact names, doctor."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from leasehold import AsyncClient, Client, StoreUnavailable, Unsupported, tables
from leasehold._model import Severity
from leasehold.stores import registry
from leasehold.stores._sql.dialect import LAYOUT
from leasehold.stores._sql.transport import Statement
from leasehold.stores.mysql.connection.base import bind, literal
from leasehold.stores.mysql.session_statements import lock_name
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer
from support.flavors import both
from support.stores.doc_pages import numbers, row

PAGE = Path(__file__).parents[3] / "docs" / "backends" / "mysql.md"


# --- what goes in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://u@h1,h2/db", "one server"),
        ("mysql://u@h", "name of the database"),
        ("mysql://u@h/a/b", "name of the database"),
        ("mysql://h/db", "names no user"),
        ("mysql:/db", "names no host"),
        ("mysql://u@h/db?mode=leases", "rows .* or session"),
        ("mysql://u@h/db?charset=latin1", "unknown option"),
        ("mysql://u@h/db?ssl=yes", "true or false"),
        ("mysql://u@h/db?ssl=false&ssl_ca=/x", "does not use it"),
        ("mysql://u@h/db?ssl_ca=/nowhere.pem", "check their paths"),
        ("mysql://u@h/db?ssl_key=/x", "without 'ssl_cert'"),
        ("mysql://u@h/db?unix_socket=/s", "no host"),
        ("mysql://u@/db?unix_socket=s", "absolute path"),
    ],
)
def test_a_wrong_url_is_an_error_before_anything_is_sent(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.opener(url)


def test_literals_do_not_depend_on_server_settings() -> None:
    assert literal(None) == b"NULL"
    assert literal(-7) == b"-7"
    assert literal(b"a'\\\x00") == b"x'61275c00'"
    assert literal("abc-_1") == b"'abc-_1'"
    assert literal("a'; DROP TABLE x; --") == b"_utf8mb4 x'" + b"a'; DROP TABLE x; --".hex().encode() + b"'"
    assert literal("ü\\") == b"_utf8mb4 x'c3bc5c'"
    assert bind(Statement("f($2, $1, $2)", ("$1", 5))) == b"f(5, _utf8mb4 x'2431', 5)"


def test_lock_names_on_the_server_are_distinct() -> None:
    keys = [(b"s", b"a"), (b"s", b"A"), (b"s", b"a "), (b"sa", b""), (b"", b"sa"), (b"s", b"a" * 512)]
    names = {lock_name(database, key).lower() for database in ("d", "D") for key in keys}
    assert len(names) == 12
    assert all(len(name) <= 64 for name in names)


# --- what it costs ---------------------------------------------------------------------------------------------


KINDS = ("begin", "commit", "rollback", "select", "insert", "insert_select", "update", "delete", "set_option")


def asked_so_far(server: MariaDBServer) -> int:
    found = server.statements()
    return sum(found.get(kind, 0) for kind in KINDS)


async def costs(
    harness: Harness, server: MariaDBServer, proxy: FaultProxy, namespace: str, mode: str
) -> dict[str, Any]:
    """Return the requests and statements of each operation."""
    url = server.url.replace(f":{server.port}/", f":{proxy.port}/") + mode
    locks = harness.client(url, namespace=namespace)
    lock, several = locks.lock("x"), locks.multi_lock(["a", "b", "c"])
    for one in (lock, several) * 2:
        await (await one.acquire(timeout=5)).release()
    found, holds, base = dict[str, tuple[int, int]](), list[Any](), 0

    async def count(name: str, work: Awaitable[Any] | None = None) -> None:
        proxy.forget()
        before = asked_so_far(server)
        if work is not None and (result := await work) not in (None, True):
            holds.append(result)
        asked = asked_so_far(server) - before - base
        found[name] = len(re.findall(rb"\x00\x03(?=[A-Z\n ])", proxy.seen())), asked

    await count("nothing")
    base = found.pop("nothing")[1]  # what looking costs
    await count("acquire", lock.acquire(timeout=5))
    await count("renewal", holds[0].renew())
    await count("release", holds[0].release())
    await count("three names at once: acquire", several.acquire(timeout=5))
    await count("three names at once: release", holds[1].release())
    await count("the very first acquire of a name", locks.lock("new").acquire(timeout=5))
    await holds[2].release()
    return found


PLAIN = {"acquire": "acquire of a free name", "release": "release without waiters"}


@both
@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["rows", "session"])
def test_costs_are_as_documented(
    mariadb_url: str, mariadb_server: MariaDBServer, namespace: str, mode: str, harness: Harness, way: str
) -> None:
    found = dict[str, tuple[int, int]]()

    with FaultProxy(mariadb_server.port) as proxy:

        async def body(harness: Harness) -> None:
            found.update(await costs(harness, mariadb_server, proxy, namespace, mode))

        harness.run(body)
    if mode:
        for name, label in (("acquire", "acquire"), ("release", "release"), ("renewal", "renewal of one hold")):
            assert found[name] == numbers("mysql", f"`mode=session`: {label}")[:2], name
    else:
        more = int(row("mysql", "the very first acquire of a name")[0].removeprefix("+ "))
        first, _ = found.pop("the very first acquire of a name")
        assert first == numbers("mysql", "acquire")[0] + more + (way == "alone")  # a statement that finds no row
        if way == "alone":
            found |= {PLAIN[name]: found.pop(name) for name in PLAIN}
        for name, cost in found.items():
            assert cost == numbers("mysql", name)[:2], name


# --- rights ----------------------------------------------------------------------------------------------------


@both
def test_the_documented_rights_suffice_and_each_is_needed(harness: Harness) -> None:
    said = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert said is not None
    statements = [one.strip().replace("app.", "locks.") for one in said[1].split(";") if one.strip()]
    with MariaDBServer(sql=["CREATE OR REPLACE USER 'probe'@'%'"]) as server:
        tables.create(server.url)
        for one in statements:
            server.query(one)
        url = server.url.replace("//app@", "//locker:secret@")

        async def body(harness: Harness) -> None:
            for mode in ("", "?mode=session"):
                client = harness.client(url + mode, namespace=f"n{mode}")
                first, second = client.lock("x", lease=9), client.lock("x", lease=9)
                hold = await first.acquire(timeout=5)
                job = harness.spawn(lambda: second.acquire(timeout=10))  # noqa: B023
                await hold.renew()
                await harness.sleep(0.3)
                await hold.release()
                await (await job.result()).release()
                await client.versioned("v").put(7)
                assert await client.holds() == []
                assert await client.inspect("x") is None
                assert [one for one in await client.diagnose() if one.severity >= Severity.ERROR] == []
            broken = harness.client(url)
            for table in ("leasehold_entry", "leasehold_name"):
                server.query(f"REVOKE UPDATE ON locks.{table} FROM 'locker'@'%'")
            findings = {one.subject: one for one in await broken.diagnose()}
            assert "UPDATE on leasehold_entry" in findings["mysql rights"].found
            assert "leasehold_name" in findings["mysql rights"].found
            with pytest.raises(StoreUnavailable, match="rights") as caught:
                await broken.lock("y").acquire(timeout=5)
            assert caught.value.lasting

        harness.run(body)


# --- ways in ---------------------------------------------------------------------------------------------------


def test_an_engine_of_sqlalchemy(mariadb_url: str, mariadb_server: MariaDBServer, namespace: str) -> None:
    engine = create_engine(mariadb_url.replace("mysql:", "mysql+pymysql:"), pool_size=1, max_overflow=0)
    try:
        with Client.from_client(engine, namespace=namespace) as locks, locks.lock("x") as hold:
            assert hold.token
            with engine.connect() as mine, Client.from_url(mariadb_url, namespace=namespace) as others:
                assert others.lock("x").acquire(blocking=False) is None
                setting = "transaction_isolation" if mariadb_server.is_mysql else "tx_isolation"
                assert mine.exec_driver_sql(f"SELECT @@{setting}").scalar() == "REPEATABLE-READ"  # left alone
        with pytest.raises(TypeError, match="create_async_engine"):
            AsyncClient.from_client(engine)
    finally:
        engine.dispose()
    latin = create_engine(mariadb_url.replace("mysql:", "mysql+pymysql:") + "?charset=latin1")
    try:
        with Client.from_client(latin) as locks, pytest.raises(Unsupported, match="utf8mb4"):
            locks.lock("x").acquire(timeout=1)
    finally:
        latin.dispose()


def test_an_asyncio_engine_of_sqlalchemy(mariadb_url: str, namespace: str) -> None:
    async def body() -> None:
        engine = create_async_engine(mariadb_url.replace("mysql:", "mysql+asyncmy:"))
        async with AsyncClient.from_client(engine, namespace=namespace) as locks, locks.lock("x") as hold:
            assert hold.token
        with pytest.raises(TypeError, match="create_engine"):
            Client.from_client(engine)
        await engine.dispose()

    asyncio.run(body())


@both
def test_tls_is_verified(harness: Harness) -> None:
    with MariaDBServer(tls=True, password="pässword'\\") as server:
        files = server.certificates
        assert files is not None
        verified = f"{server.url}?ssl_ca={files.authority}"
        tables.create(verified)

        async def body(harness: Harness) -> None:
            async with harness.client(verified) as locks:
                assert await (await locks.lock("x").acquire(timeout=5)).release()
                assert "TLS" in next(one.found for one in await locks.diagnose() if one.subject == "mysql encryption")
            for url, words in (
                (f"{server.url}?ssl=true", "ssl_ca=FILE"),
                (server.url, "user name or password|encrypted|denied"),
            ):
                with pytest.raises(StoreUnavailable) as caught:
                    await harness.client(url).lock("x").acquire(timeout=5)
                assert re.search(words, str(caught.value)), caught.value

        harness.run(body)


@both
def test_the_local_socket(mariadb_server: MariaDBServer, mariadb_url: str, namespace: str, harness: Harness) -> None:
    mariadb_server.query("CREATE USER IF NOT EXISTS 'app'@'localhost'")
    mariadb_server.query("GRANT ALL ON locks.* TO 'app'@'localhost'")
    url = f"mariadb://app@/locks?unix_socket={mariadb_server.unix_path}"

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        assert await (await client.lock("x").acquire(timeout=5)).release()

    harness.run(body)


@both
@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["rows", "session"])
def test_names_are_exact(mariadb_url: str, namespace: str, harness: Harness, mode: str) -> None:
    names = ["a", "A", "a ", " a", "á", "a\u0301", "a\0", "'; --", "\\", "%", "_", "ß", "ss", "😀", "NULL", "n" * 512]

    async def body(harness: Harness) -> None:
        client = harness.client(mariadb_url + mode, namespace=namespace)
        holds = [await client.lock(name).acquire(blocking=False) for name in names]
        assert all(hold is not None for hold in holds)
        assert sorted(info.name for info in await client.holds()) == sorted(names)
        assert [info.name for info in await client.holds("a ")] == ["a "]
        for hold in holds:
            assert await hold.release()

    harness.run(body)


def test_the_doctor_reports_problems() -> None:
    with MariaDBServer(config={"innodb-flush-log-at-trx-commit": "2"}) as server:
        with Client.from_url(server.url) as client:
            errors = {one.subject: one for one in client.diagnose() if one.severity is Severity.ERROR}
            assert list(errors) == ["mysql tables"]
            assert "leasehold init" in errors["mysql tables"].remedy
        tables.create(server.url)
        with Client.from_url(server.url) as client:
            findings = {one.subject: one for one in client.diagnose()}
            assert findings["mysql durability"].severity is Severity.WARNING
            assert all(one.severity < Severity.ERROR for one in findings.values())
            server.query("UPDATE leasehold_meta SET version = 0")
            errors = {one.subject: one for one in client.diagnose() if one.severity is Severity.ERROR}
            assert f"needs {LAYOUT}" in errors["mysql tables"].meaning

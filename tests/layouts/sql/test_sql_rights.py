"""Rights to another library's table are asked before the first claim; and a rollback is repeated after a pause."""

from __future__ import annotations

import time
from urllib.parse import urlsplit, urlunsplit

import pytest
from sql_peers import sql_server

from leasehold import StoreRefused, StoreUnavailable
from leasehold.stores._sql.transport import Outcome
from support.flavors import both

__all__ = ["sql_server"]

TABLES = {"spring": "INT_LOCK", "shedlock": "shedlock"}
"""By layout."""

RIGHTS = {"spring": ("SELECT", "INSERT", "UPDATE", "DELETE"), "shedlock": ("SELECT", "INSERT", "UPDATE")}
"""As the page lists them."""


@pytest.fixture
def user(sql_server, namespace):
    """A user without rights, and a password."""
    name = f"u{namespace.rpartition('-')[2]}"
    postgres = sql_server.kind == "postgres"
    who = name if postgres else f"'{name}'@'%'"
    sql_server.query(f"CREATE ROLE {who} LOGIN" if postgres else f"CREATE USER {who}")
    if postgres:
        sql_server.query(f"GRANT USAGE ON SCHEMA public TO {who}")
    yield name, who
    if postgres:
        sql_server.query(f"DROP OWNED BY {who}")
    sql_server.query(f"DROP ROLE {who}" if postgres else f"DROP USER {who}")


def as_user(url: str, name: str) -> str:
    """Return the URL of a database with another user."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}@{parts.hostname}:{parts.port}"))


async def run_once(locks, layout, name):
    """Acquire and release; return whether it was acquired."""
    if layout == "shedlock":
        return await locks.scheduled(name, at_least=0.001, at_most=10).run(lambda: None)
    hold = await locks.lock(name).acquire(timeout=5)
    return await hold.release()


@both
@pytest.mark.parametrize("layout", TABLES)
def test_the_listed_rights_are_enough_and_each_missing_one_is_named(sql_server, namespace, harness, user, layout):
    name, who = user
    table = TABLES[layout]

    async def body(harness):
        url = as_user(sql_server.url(layout), name)
        async with harness.client(url, namespace=namespace) as locks:
            with pytest.raises(StoreRefused) as caught:
                await run_once(locks, layout, "x")
            assert f"lacks the right to {', '.join(RIGHTS[layout])} on {table}; grant what d" in str(caught.value)
        for missing in RIGHTS[layout]:
            sql_server.query(f"GRANT {', '.join(RIGHTS[layout])} ON {table} TO {who}")
            sql_server.query(f"REVOKE {missing} ON {table} FROM {who}")
            async with harness.client(url, namespace=namespace) as locks:
                with pytest.raises(StoreRefused, match=rf"lacks the right to {missing} on {table}; grant"):
                    await run_once(locks, layout, "x")
                sql_server.query(f"GRANT {missing} ON {table} TO {who}")
                assert await run_once(locks, layout, f"x-{missing}")

    harness.run(body)


@both
@pytest.mark.parametrize("layout", TABLES)
def test_an_answer_that_says_nothing_of_rights_is_asked_again(sql_server, namespace, harness, user, layout):
    name, who = user
    sql_server.query(f"GRANT SELECT, INSERT, UPDATE ON {TABLES[layout]} TO {who}")

    async def body(harness):
        async with harness.client(as_user(sql_server.url(layout), name), namespace=namespace) as locks:
            transport = locks.store._transport

            async def refused(work, **_):
                raise StoreRefused("it is read-only", code="25006", outcome=Outcome.LASTING)

            transport.transact = refused
            with pytest.raises(StoreRefused, match="read-only"):
                await run_once(locks, layout, "x")
            del transport.transact
            sql_server.query(f"REVOKE UPDATE ON {TABLES[layout]} FROM {who}")
            with pytest.raises(StoreRefused, match=r"lacks the right to UPDATE.* on .*; grant"):
                await run_once(locks, layout, "x")

    harness.run(body)


@both
def test_a_rollback_is_repeated_after_a_pause(sql_server, namespace, harness):
    async def body(harness):
        async with harness.client(sql_server.url("spring"), namespace=namespace) as locks:
            async with locks.lock("warm"):
                pass
            store, tries = locks.store, list[float]()

            async def rolled_back(work, **_):
                tries.append(time.monotonic())
                raise StoreRefused("a conflict", outcome=Outcome.AGAIN)

            store._transport.transact = rolled_back
            with pytest.raises(StoreUnavailable, match="a conflict"):
                await locks.lock("x").acquire(timeout=1)
            assert 5 < len(tries) < 60
            del store._transport.transact

    harness.run(body)

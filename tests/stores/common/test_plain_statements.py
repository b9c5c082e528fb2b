"""The two statements of the plain case on databases: by which row they decide, and for which they wait.

`test_plain_case` shows that they do what the store's own steps do.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from leasehold._model import Granted, ReleaseReason, RenewalResult
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.plain_case import Database, database, known, ticket

__all__ = ["database"]  # pytest finds the fixture here

CHANGES = {
    "a holder": "holder = 'another', holder_expires = 4000000000000000000",
    "entries": "entries = 1",
    "a lock delay": "blocked_until = 4000000000000000000",
    "a refusal": "refused = %s",
    "nothing": "used = used + 1",
}


@both
def test_a_statement_decides_by_the_row_as_it_is_when_it_has_locked_it(
    database: Database, namespace: str, harness: Harness
) -> None:
    """Its own view is older: what was committed meanwhile counts all the same."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        if "postgres" in database.url:  # it does not wait for the lock, so it is slow to take it
            dialect = store._plain._dialect
            slow = dialect.acquire_free.replace("FOR UPDATE", "AND pg_sleep(0.7)::text IS NOT NULL FOR UPDATE")
            store._plain._dialect = dataclasses.replace(dialect, acquire_free=slow)
        for name, change in CHANGES.items():
            late = ticket()
            await known(store, name)
            other = database.server.connect()
            cursor = other.cursor()
            args = *([f"x {late.id} y"] if "%s" in change else ()), namespace.encode(), name.encode()
            text = f"UPDATE leasehold_name SET {change} WHERE space = %s AND name = %s"

            def commit(text: str = text, args: Any = args, cursor: Any = cursor, other: Any = other) -> None:
                if "postgres" in database.url:
                    cursor.execute(text, args)
                other.commit()

            if "postgres" not in database.url:
                cursor.execute("BEGIN")
                cursor.execute(text, args)
            committer = threading.Timer(0.3, commit)
            committer.start()
            granted = await store._plain.acquire(name, late, 30.0)
            committer.join()
            other.close()
            assert (granted is not None) is (name == "nothing"), name

    harness.run(body)


@both
def test_a_locked_row_is_given_up_for_the_steps(database: Database, namespace: str, harness: Harness) -> None:
    """PostgreSQL passes over it at once, MySQL after a second."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        one = ticket()
        assert isinstance(await store.try_acquire("x", one, join=False, within=5), Granted)
        holder = database.server.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM leasehold_name WHERE space = %s FOR UPDATE", (namespace.encode(),))
        assert not await store._plain.release("x", one, 30.0)
        assert await store._plain.acquire("x", ticket(), 30.0) is None
        holder.rollback()
        holder.close()
        assert await store._plain.release("x", one, 5.0)
        assert await store._plain.acquire("x", ticket(), 5.0) is not None

    harness.run(body)


@both
def test_a_statement_waits_for_no_row_but_its_own(database: Database, namespace: str, harness: Harness) -> None:
    """Neither for other names and entries, nor for the row of the layout, which it reads."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        mine = ticket()
        for name, one in (("x", mine), ("y", ticket()), ("y", ticket())):  # the last one waits, so it has an entry
            await store.try_acquire(name, one, join=True, within=5)
        holder = database.server.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        others = "SELECT id FROM leasehold_name WHERE space = %s AND name = %s FOR UPDATE"
        cursor.execute(others, (namespace.encode(), b"y"))
        ((number,),) = cursor.fetchall()
        cursor.execute("SELECT 1 FROM leasehold_entry WHERE name_id = %s FOR UPDATE", (number,))
        assert len(cursor.fetchall()) == 1
        cursor.execute("UPDATE leasehold_meta SET fence = fence + 1")
        assert cursor.rowcount == 1
        try:
            for _ in range(2):
                assert await store._plain.release("x", mine, 2.0)
                assert await store._plain.acquire("x", mine, 2.0) is not None
        finally:
            holder.rollback()
            holder.close()

    harness.run(body)


@both
def test_a_holder_in_the_row_of_its_name_is_renewed(database: Database, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        one = ticket()
        assert isinstance(await store.try_acquire("x", one, join=False, within=5), Granted)
        expiry = f"SELECT holder_expires FROM leasehold_name WHERE holder = '{one.id}'"
        ((before,),) = database.run(expiry)
        assert await store.renew([("x", one)], within=5) == [RenewalResult.HELD]
        assert database.run(expiry)[0][0] > before
        database.run("UPDATE leasehold_name SET holder_expires = 1 WHERE holder = %s", one.id)
        assert await store.renew([("x", one)], within=5) == [RenewalResult.GONE]
        assert database.run(expiry)[0][0] == 1

    harness.run(body)


@both
def test_a_wrong_number_of_entries_is_set_right_by_the_next_step(
    database: Database, namespace: str, harness: Harness
) -> None:
    """As an old client may leave it, which calls a function that an upgrade was not allowed to drop."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        second = ticket()
        await known(store, "x")
        database.run("UPDATE leasehold_name SET entries = 5 WHERE space = %s", namespace.encode())
        assert await store._plain.acquire("x", second, 5.0) is None
        assert isinstance(await store.try_acquire("x", second, join=False, within=5), Granted)
        assert database.rows(namespace)[1] == []
        assert await store._plain.release("x", second, 5.0)

    harness.run(body)


@both
def test_names_of_another_layout_are_left_alone(database: Database, namespace: str, harness: Harness) -> None:
    """A release that came just before an upgrade is no error: the sweep after it leaves that to the next operation."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        one, other = ticket(), ticket()
        await known(store, "x")
        assert isinstance(await store.try_acquire("y", one, join=False, within=5), Granted)
        database.run("UPDATE leasehold_meta SET version = version + 1")
        try:
            assert await store._plain.acquire("x", other, 5.0) is None
            assert not await store._plain.release("y", one, 5.0)
            store._sweeper._leaves = 0  # it is time for a step
            await store._sweep(harness.now() + 5.0)
        finally:
            database.run("UPDATE leasehold_meta SET version = version - 1")
        assert await store._plain.release("y", one, 5.0)

    harness.run(body)


@both
def test_a_name_refuses_the_last_64_tickets(database: Database, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        some = [ticket() for _ in range(65)]
        for one in some:
            store._plain.unanswered[one.id] = None
            assert not await store.release("x", one, reason=ReleaseReason.RELEASE, within=5)
        assert all([await store._plain.acquire("x", one, 5.0) is None for one in some[1:]])
        assert await store._plain.acquire("x", some[0], 5.0) is not None

    harness.run(body)

"""MySQL: rows and tables that others lock, deadlocks, clients that stall in a transaction, the load of many waiters."""

from __future__ import annotations

from typing import Any

import pytest
from mysql_faults import NOISE, ROUND_TRIPS, comes_true, through, waits_for_rows

from leasehold import StoreUnavailable
from leasehold.stores._sql.transport import Statement
from leasehold.stores.mysql.connection import transport
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer
from support.flavors import both
from support.missed_turns import turns_missed
from support.stores.database_faults import queued, unavailable


@both
def test_a_locked_row_is_an_error_within_the_timeout(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url, namespace=namespace, response_timeout=2.0)
        await (await client.lock("x").acquire(timeout=5)).release()
        other = server.connect()
        try:
            other.cursor().execute("SET wait_timeout = 100")
            other.begin()
            other.cursor().execute("SELECT * FROM leasehold_name FOR UPDATE")
            start = harness.now()
            error = await unavailable(client.lock("x").acquire(timeout=10))
            assert harness.now() - start < 2 + NOISE
            assert not error.unknown
            other.rollback()
        finally:
            other.close()
        await (await client.lock("x").acquire(timeout=5)).release()

    harness.run(body)


@both
def test_a_statement_alone_waits_for_a_second(mariadb_url: str, namespace: str, harness: Harness) -> None:
    """For a row and for a table: in a new session, and in one whose last transaction could wait longer."""
    limits = "SELECT @@SESSION.lock_wait_timeout, @@SESSION.innodb_lock_wait_timeout"

    async def body(harness: Harness) -> None:
        store: Any = harness.client(mariadb_url, namespace=namespace).store
        for before in ((), (4,)):
            for seconds in before:
                tx_limits = await store.mysql.transact(lambda tx: tx.commit(Statement(limits)), within=seconds + 0.9)
                assert tx_limits == [[(seconds, seconds)]]
            connection, is_new = await store.mysql.pool.take(harness.now() + 5)
            assert is_new is not bool(before)
            assert list(await connection.run(limits.encode(), harness.now() + 5)) == [((1, 1),)]
            await store.mysql.pool.give(connection)

    harness.run(body)


@both
def test_a_locked_table_is_an_error_within_the_timeout(
    mariadb_server: MariaDBServer, mariadb_url: str, namespace: str, harness: Harness
) -> None:
    """As by a backup, or a change of the table that waits for one. By default the server waits for a day or a year."""
    waiting = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table%'"

    async def body(harness: Harness) -> None:
        before, client = (harness.client(mariadb_url, namespace=namespace, response_timeout=2.0) for _ in range(2))
        await (await before.lock("x").acquire(timeout=5)).release()
        other = mariadb_server.connect()
        try:
            other.cursor().execute("LOCK TABLES leasehold_name READ")
            start = harness.now()
            error = await unavailable(client.lock("x", lease=1.0).acquire(timeout=10))
            assert harness.now() - start < 2 + NOISE
            assert not error.unknown, "the statement that is a transaction of its own was refused"
            await comes_true(harness, lambda: not mariadb_server.query(waiting))
        finally:
            other.close()
        await (await client.lock("x").acquire(timeout=5)).release()

    harness.run(body)


@both
def test_a_deadlock_is_tried_again(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    """One session has locked the permit's entry and wants the name; the release has the name and wants the entry."""

    async def body(harness: Harness) -> None:
        client = harness.client(server.url, namespace=namespace)
        hold = await client.semaphore("x", 1).acquire(timeout=5)
        before = server.statements().get("rollback", 0)
        other, cursor = server.connect(), None
        try:
            cursor = other.cursor()
            cursor.execute("CREATE TABLE IF NOT EXISTS heavy (x INT) ENGINE = InnoDB")
            other.begin()
            rows = (
                "WITH RECURSIVE seq (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM seq WHERE n < 1000) SELECT n FROM seq"
            )
            cursor.execute(f"INSERT INTO heavy {rows}")  # so that the other one is the victim
            cursor.execute("UPDATE leasehold_entry SET meta = 'touched'")
            job = harness.spawn(hold.release)
            await comes_true(harness, lambda: waits_for_rows(server) == 1)
            cursor.execute("SELECT * FROM leasehold_name FOR UPDATE")
            other.rollback()
            assert await job.result()
        finally:
            other.close()
        assert server.statements()["rollback"] > before + 1
        assert await client.inspect("x") is None

    harness.run(body)


@both
def test_a_client_that_stalls_in_a_transaction_is_cut_off(
    server: MariaDBServer, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        stalled = harness.client(server.url, namespace=namespace)
        other = harness.client(server.url, namespace=namespace)
        await (await other.lock("x").acquire(timeout=5)).release()
        await (await stalled.lock("y").acquire(timeout=5)).release()  # the server's own time limit is off by now
        store: Any = stalled.store
        locked = harness.event()

        async def stall(tx: Any) -> None:
            await tx.ask(Statement(store._dialect.lock_name, store._key("x")))
            locked.set()
            await harness.sleep(4.5)  # a statement that may take a second is cut off after three
            await tx.commit(Statement(store._dialect.clock))

        job = harness.spawn(lambda: store._transport.transact(stall, within=1.0))
        assert await locked.wait(5)
        start = harness.now()
        hold = await other.lock("x").acquire(timeout=10)
        assert hold is not None
        assert harness.now() - start < 3 + NOISE
        with pytest.raises(StoreUnavailable):
            await job.result()
        await hold.release()

    harness.run(body)


@both
def test_the_waiters_of_a_client_share_queries(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    """One query for all of them, rarer and rarer: the bound is that of a single waiter."""

    async def body(harness: Harness) -> None:
        holder = harness.client(server.url, namespace=namespace)
        waiters = harness.client(server.url, namespace=namespace)
        hold = await holder.lock("x", lease=60).acquire(timeout=5)

        async def in_turn() -> None:
            mine = await waiters.lock("x", lease=60).acquire(timeout=30)
            assert mine is not None
            await mine.release()

        jobs = [harness.spawn(in_turn) for _ in range(30)]
        await queued(harness, holder, "x", 30)
        await harness.sleep(2.0)
        before, start = server.statements()["select"], harness.now()
        await harness.sleep(2.0)
        looks = server.statements()["select"] - before
        assert looks <= 8 * (harness.now() - start) + 4, looks  # a quarter of a second and more between two looks
        await hold.release()
        start = harness.now()
        for job in jobs:  # each hands the name to another of this client, which needs no look
            await job.result()
        assert harness.now() - start < 30 * 0.1 + NOISE

    harness.run(body)


@both
def test_a_hand_over_is_seen_within_an_eighth_of_the_wait(
    server: MariaDBServer, namespace: str, harness: Harness
) -> None:
    """As the page says: within 0.13 s after a wait of a second, without a message; and few polls meanwhile."""

    async def body(harness: Harness) -> None:
        holder, waiter = (harness.client(server.url, namespace=namespace) for _ in range(2))
        for wait in (1.0,) * 4:
            hold = await holder.lock("x", lease=60).acquire(timeout=5)
            job = harness.spawn(lambda: waiter.lock("x", lease=60).acquire(timeout=30))
            await queued(harness, holder, "x", 1)
            await harness.sleep(wait)
            with turns_missed() as missed:
                await hold.release()
                released = harness.now()
                got = await job.result()
                took = harness.now() - released
            assert took < wait / 8 + ROUND_TRIPS + missed.total(), took
            await got.release()

    harness.run(body)


@both
def test_connections_are_bounded(server: MariaDBServer, proxy: FaultProxy, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(through(server, proxy), namespace=namespace)

        async def one(number: int) -> None:
            hold = await client.lock(f"x{number}").acquire(timeout=20)
            assert hold is not None
            await hold.release()

        await harness.gather(*[one(number) for number in range(60)])
        assert proxy.open_connections <= transport.AT_ONCE + 1

    harness.run(body)

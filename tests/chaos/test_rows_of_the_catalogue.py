"""Rows of the fault catalogue that no other test provokes on a real server or file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from leasehold import AsyncClient, Client
from leasehold.stores.postgres.advisory import key_of
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer, RedisServer
from support.flavors import both


@both
def test_renewals_go_on_while_all_connections_are_busy(
    harness: Harness, postgres_server: PostgresServer, namespace: str
) -> None:
    """B10: acquires use the only connection of the pool, each until its timeout. A hold is still renewed."""
    lease = 1.5

    async def body(harness: Harness) -> None:
        locks = harness.client(f"{postgres_server.url}?pool=1", namespace=namespace, response_timeout=lease)
        kept = await locks.lock("kept", lease=lease).acquire()
        assert kept is not None
        async with locks.lock("busy"):
            pass  # creates the row of this name
        with closing(postgres_server.connect()) as outsider:
            outsider.autocommit = False
            rows = outsider.execute(
                "SELECT 1 FROM leasehold_name WHERE space = %s AND name = 'busy' FOR UPDATE", (namespace.encode(),)
            )
            assert rows.fetchall() == [(1,)]
            jobs = [harness.spawn(lambda: locks.lock("busy").acquire(timeout=2 * lease)) for _ in range(6)]
            for _ in range(10):
                await harness.sleep(lease / 5)
                kept.raise_if_lost()
            outsider.rollback()
        for job in jobs:
            await job.join(10.0)
            if job.exception() is None and (hold := await job.result()) is not None:
                await hold.release()
        await kept.release()

    harness.run(body)


def test_no_renewal_is_sent_after_the_release(redis_server: RedisServer, namespace: str) -> None:
    """E5: holds are released at many moments around a renewal, on a slow server. Nothing is sent after that."""
    lease = 0.9

    async def body() -> None:
        with FaultProxy(redis_server.port) as proxy:
            async with AsyncClient.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
                proxy.delay(0.03, Side.REPLIES)

                async def work(number: int) -> str:
                    hold = await locks.lock(f"x{number}", lease=lease).acquire()
                    assert hold is not None
                    await asyncio.sleep(lease / 3 - 0.1 + number * 0.01)
                    await hold.release()
                    return hold._lease.ticket.id

                tickets = await asyncio.gather(*map(work, range(30)))
                renewed = proxy.seen()
                assert any(renewed.count(ticket.encode()) > 2 for ticket in tickets), "some were renewed"
                await asyncio.sleep(lease / 3)  # until all requests under way have arrived
                proxy.forget()
                await asyncio.sleep(2 * lease)
                assert not any(ticket.encode() in proxy.seen() for ticket in tickets)
                assert await locks.holds() == []

    asyncio.run(body())


def test_names_whose_keys_share_32_bits_are_held_at_the_same_time(
    postgres_server: PostgresServer, namespace: str
) -> None:
    """H6: among 300,000 names, some pairs share the lower 32 bits of the key. They differ in all 64 bits."""
    seen: dict[int, str] = {}
    pairs = list[tuple[str, str]]()
    for number in range(300_000):
        short = key_of(namespace, f"name-{number}") & 0xFFFFFFFF
        if short in seen:
            pairs.append((seen[short], f"name-{number}"))
        seen[short] = f"name-{number}"
    assert pairs, "about ten pairs are expected"
    with Client.from_url(f"{postgres_server.url}?mode=session", namespace=namespace) as locks:
        for one, other in pairs[:3]:
            with locks.lock(one, timeout=5.0), locks.lock(other, timeout=5.0):
                assert locks.lock(one).locked()


def test_no_transaction_fails_because_its_read_lock_cannot_be_upgraded(tmp_path: Path) -> None:
    """J1: another program reads and then writes in one transaction, which can fail. The library never does this."""
    path = tmp_path / "locks.db"
    over, refused, errors, turns = threading.Event(), [], [], []

    def outsider() -> None:
        with closing(sqlite3.connect(path, timeout=0.05, isolation_level=None)) as connection:
            while not over.is_set():
                try:
                    connection.execute("BEGIN")
                    connection.execute("SELECT count(*) FROM entry").fetchone()
                    time.sleep(0.002)
                    connection.execute("UPDATE name SET used = used")
                    connection.execute("COMMIT")
                except sqlite3.OperationalError as error:
                    refused.append(error)
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

    def ours(number: int) -> None:
        with Client.from_url(f"sqlite:{path}") as locks:
            while not over.is_set():
                try:
                    with locks.lock(f"x{number % 2}", timeout=10.0):
                        turns.append(number)
                except Exception as error:
                    errors.append(error)

    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x0"):
        pass  # creates the file
    threads = [threading.Thread(target=outsider)] + [threading.Thread(target=ours, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(2.0)
    over.set()
    for thread in threads:
        thread.join()
    assert refused, "the other program was refused"
    assert not errors
    assert set(turns) == set(range(4))

"""Servers that restart without their data, or that do not replicate locks: which promises are kept, what is refused."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from leasehold import Client, Hold, LeaseLost, StoreUnavailable, Unsupported, tables
from leasehold.guards import Stale, sql
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import EtcdServer, GaleraServer, PostgresServer, ZooKeeperServer
from leasehold_lab.servers.sql.postgres import find_binary, run_as
from support.flavors import both
from support.patience import until

BUSY = 2.0
"""Seconds by which a busy machine may be late."""

RETRIES = 5.0
"""Seconds that one failed attempt to connect may take, with the pause after it."""


def test_an_ensemble_whose_data_are_wiped(namespace: str) -> None:
    """F9: holders are notified, and clients start new sessions. Tokens restart, so a guard refuses the lower ones."""
    timeout = 4.0
    with ZooKeeperServer() as server, closing(sqlite3.connect(":memory:")) as shop:
        shop.execute("CREATE TABLE stock (item INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
        shop.execute("INSERT INTO stock (item) VALUES (42)")
        url = f"{server.url}/locks?session_timeout={timeout:.0f}"
        with Client.from_url(url, namespace=namespace) as one, Client.from_url(url, namespace=namespace) as two:
            for _ in range(20):
                with one.lock("y"):
                    pass
            hold = one.lock("x", lease=30.0).acquire()
            assert hold is not None
            sql.update(shop, "stock", {"item": 42}, where={"item": 42}, token=hold.token)
            server.kill()
            shutil.rmtree(server.folder / "data")
            server.start()
            until(lambda: hold.lost, timeout + BUSY)
            with pytest.raises(LeaseLost):
                hold.raise_if_lost()
            later = first_of(two, timeout)
            assert later.token < hold.token, "as the page says"
            with pytest.raises(Stale):
                sql.update(shop, "stock", {"item": 42}, where={"item": 42}, token=later.token)
            later.release()
            assert first_of(one, timeout).token > later.token


def first_of(locks: Client, session: float) -> Hold:
    """Acquire as soon as the client has a new session. It may have to wait until the old one has expired."""
    found = list[Hold]()

    def tried() -> bool:
        with suppress(StoreUnavailable):
            hold = locks.lock("x", lease=30.0).acquire(timeout=1.0)
            if hold is not None:
                found.append(hold)
        return bool(found)

    until(tried, session + 2 * RETRIES + BUSY)
    return found[0]


def test_a_single_member_that_crashes_again_and_again(namespace: str) -> None:
    """G8: a member whose process crashes loses no confirmed write. (If the machine crashed, it could.)"""
    with EtcdServer() as server, Client.from_url(server.url, namespace=namespace) as locks:
        tokens, inside = defaultdict[str, list[int]](list), defaultdict[str, int](int)
        over, overlaps = threading.Event(), list[str]()

        def work(number: int) -> None:
            with Client.from_url(server.url, namespace=namespace) as mine:
                while not over.is_set():
                    name = f"x{number % 2}"
                    try:
                        hold = mine.lock(name, lease=2.0).acquire(timeout=20.0)
                        if hold is None:
                            continue
                        inside[name] += 1
                        if inside[name] != 1:
                            overlaps.append(name)
                        tokens[name].append(hold.token)
                        inside[name] -= 1
                        hold.release()
                    except (StoreUnavailable, LeaseLost):
                        time.sleep(0.02)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        counts = list[int]()
        for _ in range(4):
            counts.append(sum(map(len, tokens.values())))
            until(lambda: sum(map(len, tokens.values())) >= counts[-1] + 10, 30.0)
            server.kill()
            server.start()
        over.set()
        for thread in threads:
            thread.join()
        assert not overlaps
        assert all(found == sorted(set(found)) for found in tokens.values())
        for name, found in tokens.items():
            hold = locks.lock(name).acquire(timeout=20.0)
            assert hold is not None
            assert hold.token > found[-1]
            hold.release()


@contextmanager
def replicated() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Start a primary with the tables, and a standby that streams from it."""
    with PostgresServer() as primary:
        tables.create(primary.url)
        source = f"host=127.0.0.1 port={primary.port} user=postgres"
        standby = PostgresServer(config={"primary_conninfo": f"'{source}'", "hot_standby": "on"})
        try:
            copy = [find_binary("pg_basebackup"), "-D", str(standby.data), "-d", source, "-c", "fast", "-X", "stream"]
            account = standby.account()
            if account is not None:
                shutil.chown(standby.folder, account[0], account[1])
            run_as(account, copy, standby.folder)
            (standby.data / "standby.signal").touch()
            standby.start()
            yield primary, standby
        finally:
            standby.stop()


@both
def test_a_standby_that_is_promoted(harness: Harness, namespace: str) -> None:
    """H7: session locks are not replicated, so their holders are notified. Rows are, so holds by rows continue."""
    with replicated() as (primary, standby):
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

        async def body(harness: Harness) -> None:
            rows, others = harness.client(url, namespace=namespace), harness.client(url, namespace=namespace)
            sessions = harness.client(f"{url}&mode=session", namespace=namespace)
            session = await sessions.lock("by session", lease=20.0).acquire()
            kept = await rows.lock("by row", lease=20.0).acquire()
            assert session is not None
            assert kept is not None
            sent = primary.query("SELECT pg_current_wal_lsn()::text")[0][0]
            until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (sent,))[0][0], 10.0)
            primary.kill()
            killed = harness.now()
            while not session.lost:
                assert harness.now() - killed < BUSY, "a session that ends is noticed at once"
                await harness.sleep(0.01)
            standby.query("SELECT pg_promote()")
            again = await sessions.lock("by session", lease=20.0).acquire(timeout=20.0)
            assert again is not None
            assert again.token > session.token
            assert await others.lock("by row").acquire(timeout=0.0) is None
            await kept.renew()
            kept.raise_if_lost()
            await kept.release()
            next_one = await others.lock("by row").acquire(timeout=5.0)
            assert next_one is not None
            assert next_one.token > kept.token
            await next_one.release()
            await again.release()

        harness.run(body)


@pytest.fixture(scope="module")
def galera() -> Iterator[GaleraServer]:
    with GaleraServer() as server:
        tables.create(server.url)
        yield server


@both
def test_sessions_on_a_node_of_galera_are_refused(galera: GaleraServer, namespace: str, harness: Harness) -> None:
    """I4: GET_LOCK is known to one node only. So a session lock raises an error with the remedy; lease rows work."""

    async def body(harness: Harness) -> None:
        sessions = harness.client(f"{galera.url}?mode=session", namespace=namespace)
        with pytest.raises(Unsupported, match="leave out mode=session"):
            await sessions.lock("x").acquire(timeout=5.0)
        rows, others = (harness.client(galera.url, namespace=namespace) for _ in range(2))
        hold = await rows.lock("x").acquire(timeout=5.0)
        assert hold is not None
        assert await others.lock("x").acquire(timeout=0.0) is None
        await hold.release()
        later = await others.lock("x").acquire(timeout=5.0)
        assert later is not None
        assert later.token > hold.token
        await later.release()

    harness.run(body)

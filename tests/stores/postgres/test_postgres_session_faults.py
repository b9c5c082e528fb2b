"""PostgreSQL with mode=session: sessions that end, fall silent, or are killed as they wait."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from postgres_faults import NOISE, hangs_up

from leasehold import Client, LeaseLost, StoreUnavailable
from leasehold.stores.postgres.advisory import key_of
from leasehold.stores.postgres.session import SessionStore
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.stores.database_faults import queued

END_HOLDERS = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"


@both
def test_a_holder_is_notified_at_once_when_its_session_ends(server: PostgresServer, harness: Harness) -> None:
    url = f"{server.url}?mode=session"

    async def body(harness: Harness) -> None:
        holder, waiter = harness.client(url), harness.client(url)
        hold = await holder.lock("x", lease=30.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x").acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        server.query(END_HOLDERS)
        start = harness.now()
        got = await job.result()
        assert got is not None
        assert harness.now() - start < NOISE
        assert got.token > hold.token
        while not hold.lost:
            assert harness.now() - start < 0.2 + NOISE
            await harness.sleep(0.01)
        await got.release()
        try:
            await hold.release()
        except LeaseLost:
            return
        raise AssertionError("a lost hold was released")

    harness.run(body)


REFUSED = """
    CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'as told' USING ERRCODE = '{code}';
    END $$;
    CREATE TRIGGER failing BEFORE UPDATE ON leasehold_entry FOR EACH ROW EXECUTE FUNCTION fail();
"""


@both
@pytest.mark.parametrize("code", ["53100", "42501", "40P01"])
def test_a_renewal_that_the_server_refuses_costs_no_lock(server: PostgresServer, harness: Harness, code: str) -> None:
    """A full disk, a revoked right, a deadlock: the server has answered on the session, which has its lock."""

    async def body(harness: Harness) -> None:
        client, other = (harness.client(f"{server.url}?mode=session") for _ in range(2))
        hold = await client.lock("x", lease=60.0).acquire(timeout=20)
        assert hold is not None
        server.execute(REFUSED.format(code=code))
        for _ in range(2):
            await hold.renew()
        assert not hold.lost
        assert await other.lock("x").acquire(blocking=False) is None
        await hold.release()
        server.execute("DROP TRIGGER failing ON leasehold_entry")
        got = await other.lock("x").acquire(timeout=20)
        assert got is not None
        assert got.token > hold.token
        await got.release()

    harness.run(body)


@both
def test_a_renewal_that_a_pooler_may_have_refused_ends_the_hold(server: PostgresServer, harness: Harness) -> None:
    """A pooler answers so when it has lost the server, and with it the lock."""

    async def body(harness: Harness) -> None:
        client, other = (harness.client(f"{server.url}?mode=session") for _ in range(2))
        hold = await client.lock("x", lease=60.0).acquire(timeout=20)
        assert hold is not None
        server.execute(REFUSED.format(code="08006"))
        with pytest.raises(LeaseLost):
            await hold.renew()
        assert hold.lost
        got = await other.lock("x").acquire(timeout=20)
        assert got is not None
        await got.release()

    harness.run(body)


@both
def test_an_error_that_ended_the_connection_ends_the_hold(server: PostgresServer, harness: Harness) -> None:
    """It need not be fatal by its own words. The renewal counted, and the thread that watches all holds ended."""

    async def body(harness: Harness) -> None:
        with hangs_up(server) as proxy:
            client, other = harness.client(f"{proxy.url}?mode=session"), harness.client(f"{server.url}?mode=session")
            hold = await client.lock("x", lease=60.0).acquire(timeout=20)
            assert hold is not None
            proxy.answer(b"leasehold_", "57014")
            with pytest.raises(LeaseLost):
                await hold.renew()
            assert hold.lost
            got = await other.lock("x").acquire(timeout=20)
            assert got is not None
            await got.release()
            again = await client.lock("x", lease=60.0).acquire(timeout=20)
            assert again is not None
            server.query(END_HOLDERS)
            end = harness.now() + 20
            while not again.lost:
                assert harness.now() < end, "the client watches its holds no more"
                await harness.sleep(0.02)

    harness.run(body)


def test_a_silent_session_ends_with_its_lease(
    proxied: tuple[FaultProxy, str], postgres_server: PostgresServer, namespace: str
) -> None:
    """The holder's host vanishes: no message reaches the server, and it frees the lock all the same."""
    proxy, url = proxied
    with (
        Client.from_url(f"{url}?mode=session", namespace=namespace, response_timeout=0.5) as gone,
        Client.from_url(f"{postgres_server.url}?mode=session", namespace=namespace) as other,
    ):
        hold = gone.lock("x", lease=1.5).acquire(timeout=5)
        assert hold is not None
        proxy.blackhole()
        start = time.monotonic()
        got = other.lock("x").acquire(timeout=20)
        assert got is not None
        assert time.monotonic() - start < 1.5 + NOISE
        assert hold.lost
        got.release()
        proxy.heal()
        proxy.cut()


LIMIT = 1.0
"""Seconds of a time limit of the server's configuration."""

WAIT_ON = f"""
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND waitstart < clock_timestamp() - interval '{2 * LIMIT} s'
"""


@both
@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_a_time_limit_of_the_server_costs_no_waiter_its_turn(
    server: PostgresServer, harness: Harness, setting: str
) -> None:
    """Else each waiter would enter the server's queue again and again, at its end."""
    server.configure(**{setting: f"{LIMIT * 1000:.0f}ms"})
    url = f"{server.url}?mode=session"

    async def body(harness: Harness) -> None:
        clients = [harness.client(url) for _ in range(3)]
        hold = await clients[0].lock("x").acquire(timeout=20)
        assert hold is not None
        jobs = []
        for count, client in enumerate(clients[1:], 1):
            jobs.append(harness.spawn(lambda client=client: client.lock("x", fair=True).acquire(timeout=60)))
            await queued(harness, clients[0], "x", count)
        end = harness.now() + 20 * LIMIT
        while server.query(WAIT_ON) != [(2,)]:
            assert harness.now() < end, "a wait was ended"
            await harness.sleep(0.05)
        await hold.release()
        for job in jobs:
            got = await job.result()
            assert got is not None
            assert got.token > hold.token
            hold = got
            await hold.release()

    harness.run(body)


def test_a_killed_waiter_in_the_servers_queue_blocks_no_one(postgres_server: PostgresServer, namespace: str) -> None:
    url = f"{postgres_server.url}?mode=session"
    with Client.from_url(url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        assert hold is not None
        with FaultProxy(postgres_server.port) as proxy:
            ghost = Client.from_url(
                f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?mode=session", namespace=namespace
            )

            def wait() -> None:
                with pytest.raises(StoreUnavailable):
                    ghost.lock("x", lease=3.0).acquire()

            thread = threading.Thread(target=wait)
            thread.start()
            until = time.monotonic() + 5
            while len(locks.inspect("x").waiters) != 1:  # type: ignore[union-attr]
                assert time.monotonic() < until
                time.sleep(0.01)
            proxy.stop()
            start = time.monotonic()
            while locks.inspect("x").waiters:  # type: ignore[union-attr]
                assert time.monotonic() - start < 1.0 + NOISE  # client_connection_check_interval
                time.sleep(0.05)
            thread.join()
            ghost.close()
        hold.release()


def test_after_a_restart_the_session_of_another_that_has_its_process_id_is_left_alone(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container process ids begin again, too. The release of a lost hold ended who had the lock by then."""
    release, other, done = SessionStore._release, threading.Event(), threading.Event()
    pid: list[int] = []

    async def release_late(mine: Any, session: Any, until: float) -> bool:
        assert other.wait(60)
        session.connection.facts["backend"] = pid[0]
        try:
            return await release(mine, session, mine._runtime.now() + 5)
        finally:
            done.set()

    monkeypatch.setattr(SessionStore, "_release", release_late)
    with Client.from_url(f"{server.url}?mode=session") as client:
        hold = client.lock("x", lease=60).acquire(timeout=5)
        assert hold is not None
        server.restart(crash=True)
        with connected(server) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (key_of("default", "x"),))
            pid.append(holder.info.backend_pid)
            other.set()
            with pytest.raises(LeaseLost):
                hold.release()
            assert done.wait(20)
            time.sleep(0.3)
            assert holder.execute("SELECT 1").fetchone() == (1,)


def connected(server: PostgresServer) -> psycopg.Connection[Any]:
    """Connect to a server that may still recover."""
    end = time.monotonic() + 30
    while True:
        try:
            return psycopg.connect(server.url, autocommit=True)
        except psycopg.OperationalError:
            assert time.monotonic() < end
            time.sleep(0.05)

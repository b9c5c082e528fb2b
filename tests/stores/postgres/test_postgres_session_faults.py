"""PostgreSQL with mode=session: sessions that end, fall silent, or are killed as they wait."""

from __future__ import annotations

import threading
import time

import pytest
from postgres_faults import NOISE

from leasehold import Client, LeaseLost, StoreUnavailable
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.stores.database_faults import queued


@both
def test_a_holder_is_notified_at_once_when_its_session_ends(server: PostgresServer, harness: Harness) -> None:
    url = f"{server.url}?mode=session"

    async def body(harness: Harness) -> None:
        holder, waiter = harness.client(url), harness.client(url)
        hold = await holder.lock("x", lease=30.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x").acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        server.query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        )
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


def test_a_silent_session_ends_with_its_lease(
    proxied: tuple[FaultProxy, str], postgres_server: PostgresServer, namespace: str
) -> None:
    """The holder's host vanishes: the server is told nothing, and frees the lock all the same."""
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

"""MySQL under faults: replies lost, connections cut, silent and killed, restarts; odd settings."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from mysql_faults import NOISE, make_tables, through

from leasehold import LeaseLost
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer
from support.flavors import both
from support.stores.database_faults import queued, unavailable


@both
@pytest.mark.parametrize("commit", [1, 2], ids=["of the name", "of the grant"])
@pytest.mark.parametrize("delivered", [True, False], ids=["reply lost", "request lost"])
def test_a_commit_without_an_answer_is_repeated(
    server: MariaDBServer, proxy: FaultProxy, namespace: str, harness: Harness, commit: int, delivered: bool
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(through(server, proxy), namespace=namespace)
        fault = (proxy.drop_reply if delivered else proxy.cut_at)(commit, where=b"; COMMIT")
        hold = await client.lock("x").acquire(timeout=5)
        assert fault.hits == 1
        assert hold is not None
        info = await client.inspect("x")
        assert info is not None
        assert [one.token for one in info.holders] == [hold.token]
        assert await hold.release()
        assert await client.inspect("x") is None

    harness.run(body)


@both
def test_a_lost_release_is_repeated(server: MariaDBServer, proxy: FaultProxy, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(through(server, proxy), namespace=namespace)
        hold = await client.lock("x").acquire(timeout=5)
        fault = proxy.drop_reply(1, where=b"; COMMIT")
        await hold.release()
        assert fault.hits == 1
        assert await client.inspect("x") is None

    harness.run(body)


@both
def test_a_silent_server_is_given_up_within_the_timeout(
    server: MariaDBServer, proxy: FaultProxy, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(through(server, proxy), namespace=namespace, response_timeout=0.5)
        hold = await client.lock("held", lease=2).acquire(timeout=5)
        silence = proxy.blackhole()
        start = harness.now()
        error = await unavailable(client.lock("x").acquire(timeout=10))
        assert harness.now() - start < 0.5 + NOISE
        assert "did not answer" in str(error) or "cannot connect" in str(error)
        await harness.sleep(max(0.0, start + 2.0 - harness.now()))
        assert hold.lost
        silence.remove()
        proxy.cut()
        again = await client.lock("x").acquire(timeout=5)
        assert again is not None
        await again.release()

    harness.run(body)


@both
@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["lease", "session"])
def test_killed_sessions(server: MariaDBServer, namespace: str, harness: Harness, mode: str) -> None:
    """A lease survives them and a waiter continues; a session's lock ends with it, and its holder is notified."""

    async def body(harness: Harness) -> None:
        holder = harness.client(server.url + mode, namespace=namespace)
        waiter = harness.client(server.url + mode, namespace=namespace)
        hold = await holder.lock("x", lease=1.5).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x", lease=1.5).acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        start = harness.now()
        if mode:
            (place,) = holder.store._sessions._holds.values()  # type: ignore[attr-defined]
            server.query(f"KILL CONNECTION {place.number:d}")
        else:
            assert server.end_sessions() >= 2
        if mode:
            got = await job.result()
            assert harness.now() - start < NOISE
            while not hold.lost:
                assert harness.now() - start < 0.5 + NOISE
                await harness.sleep(0.01)
            with pytest.raises(LeaseLost):
                await hold.release()
        else:
            await harness.sleep(2.0)
            hold.raise_if_lost()
            await hold.release()
            got = await job.result()
        assert got.token > hold.token
        await got.release()

    harness.run(body)


@both
def test_idle_sessions_are_kept_past_the_servers_timeout(
    server: MariaDBServer, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(f"{server.url}?mode=session", namespace=namespace)
        hold = await client.lock("x", lease=30).acquire(timeout=5)
        await harness.sleep(3.0)  # the server's own wait_timeout is 2
        await hold.renew()
        assert await hold.release()

    harness.run(body)


@both
def test_a_restart_keeps_leases_and_wakes_waiters(harness: Harness) -> None:
    with MariaDBServer() as mine:
        make_tables(mine)

        async def body(harness: Harness) -> None:
            holder, waiter = harness.client(mine.url), harness.client(mine.url)
            hold = await holder.lock("x", lease=30).acquire(timeout=5)  # longer than a restart on a slow disk
            job = harness.spawn(lambda: waiter.lock("x", lease=30).acquire(timeout=30))
            await queued(harness, holder, "x", 1)
            mine.restart()
            await hold.renew()
            assert await hold.release()
            released = harness.now()
            got = await job.result()
            assert harness.now() - released < 10, "its next renewal woke it"
            assert got is not None
            assert got.token > hold.token
            await got.release()
            mine.pause()
            start = harness.now()
            try:
                await unavailable(waiter.lock("y").acquire(timeout=0.5))
            finally:
                mine.resume()
            assert harness.now() - start < 5 + NOISE
            await (await waiter.lock("y").acquire(timeout=5)).release()

        harness.run(body)


@both
@pytest.mark.parametrize("first", ["silent", "nobody"])
def test_a_host_is_reached_at_its_second_address(
    server: MariaDBServer, namespace: str, harness: Harness, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may have an address of a node that is stopped, or one of IPv6 that leads nowhere."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in ("db.test", b"db.test"):
            return real(host, port, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in ("127.0.0.9", "127.0.0.1")]

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace, response_timeout=4.0)
        hold = await client.lock("x").acquire(timeout=4.0)
        assert hold is not None
        await hold.release()
        store: Any = client.store
        await store._transport.pool.forget_idle()
        start = harness.now()
        assert await client.inspect("x") is None
        assert harness.now() - start < 1.5, "the silent one is tried last from now on"

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = server.url.replace("127.0.0.1", "db.test")
    with socket.create_server(("127.0.0.9", server.port)) as listening:
        if first == "nobody":
            listening.close()
        harness.run(body)


@both
def test_a_host_with_one_address_is_looked_up_once_for_a_connection(
    server: MariaDBServer, namespace: str, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second lookup, by the driver, took what a slow DNS had left of the time."""
    real, asked = socket.getaddrinfo, []

    def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in ("db.test", b"db.test"):
            return real(host, port, *args, **kwargs)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def body(harness: Harness) -> None:
        client = harness.client(server.url.replace("127.0.0.1", "db.test"), namespace=namespace)
        hold = await client.lock("x").acquire(timeout=5.0)
        assert hold is not None
        assert len(asked) == 1
        await hold.release()

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    harness.run(body)

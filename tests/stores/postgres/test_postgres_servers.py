"""PostgreSQL: servers that restart, stop, stand by, are full, or end a deadlock; and one of several that is silent."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from postgres_faults import NOISE

from leasehold import StoreUnavailable
from leasehold.stores.postgres.connection.errors import AGAIN
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.stores.database_faults import queued, unavailable

WITHIN = 3.0
"""Seconds that the server may take: with two hosts each gets half."""


@both
@pytest.mark.parametrize("crash", [False, True], ids=["in order", "crash"])
def test_a_waiter_tolerates_a_restart(server: PostgresServer, harness: Harness, crash: bool) -> None:
    async def body(harness: Harness) -> None:
        holder, waiter = harness.client(server.url), harness.client(server.url)
        hold = await holder.lock("x", lease=20.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x", lease=20.0).acquire(timeout=40))
        await queued(harness, holder, "x", 1)
        server.restart(crash=crash)
        await hold.renew()
        await hold.release()
        got = await job.result()
        assert got is not None
        assert got.token > hold.token
        await got.release()

    harness.run(body)


@both
def test_a_stopped_server_costs_only_the_hold(server: PostgresServer, harness: Harness, way: str) -> None:
    takes = 1.0 if way == "steps" else 2.0  # a call may have been carried out, so it is released

    async def body(harness: Harness) -> None:
        client = harness.client(server.url, response_timeout=1.0)
        hold = await client.lock("x", lease=1.0).acquire(timeout=5)
        assert hold is not None
        server.pause()
        start = harness.now()
        error = await unavailable(client.lock("y").acquire(timeout=0.2))
        assert harness.now() - start < takes + NOISE
        assert "did not answer" in str(error) or "timed out" in str(error)
        await harness.sleep(max(0.0, start + 1.1 - harness.now()))
        assert hold.lost
        server.resume()
        again = await client.lock("x").acquire(timeout=10)
        assert again is not None
        assert again.token > hold.token
        await again.release()

    harness.run(body)


@both
def test_a_standby_is_refused_and_a_read_only_default_is_not(server: PostgresServer, harness: Harness) -> None:
    server.configure(default_transaction_read_only="on")

    async def read_only(harness: Harness) -> None:
        hold = await harness.client(server.url).lock("x").acquire(timeout=5)
        assert hold is not None
        await hold.release()

    async def standby(harness: Harness) -> None:
        error = await unavailable(harness.client(server.url).lock("x").acquire(timeout=1))
        assert "standby" in str(error)
        assert "target_session_attrs" in str(error)

    harness.run(read_only)
    server.terminate()
    (server.data / "standby.signal").touch()
    server.start()
    harness.run(standby)


@both
@pytest.mark.parametrize(
    ("code", "words"), [("53100", "disk is full"), ("53200", "out of memory"), ("25006", "read-only")]
)
def test_a_server_that_cannot_write_is_a_clear_error_that_applies_nothing(
    server: PostgresServer, harness: Harness, code: str, words: str
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url)
        failing(server, code)
        error = await unavailable(client.lock("x").acquire(timeout=1))
        assert words in str(error)
        assert not error.unknown
        server.execute("DROP TRIGGER failing ON leasehold_name")
        assert await client.inspect("x") is None

    harness.run(body)


@both
@pytest.mark.parametrize("code", sorted(AGAIN))
def test_a_deadlock_is_tried_again(server: PostgresServer, harness: Harness, code: str) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url)
        failing(server, code, times=2)
        hold = await client.lock("x").acquire(timeout=5)
        assert hold is not None
        await hold.release()

    harness.run(body)


def failing(server: PostgresServer, code: str, times: int = 10**9) -> None:
    """Let the writing of a holder fail with this SQLSTATE, so often."""
    server.execute(
        f"""
        CREATE SEQUENCE IF NOT EXISTS failures;
        CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER failing BEFORE UPDATE ON leasehold_name FOR EACH ROW EXECUTE FUNCTION fail();
        """
    )


# --- several hosts, and several addresses of one name ---------------------------------------------------------------


@contextlib.contextmanager
def silent(port: int = 0, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Listen and say nothing, as a server whose process is stopped."""
    with socket.create_server((address, port), backlog=50) as listening:
        yield listening


@both
@pytest.mark.parametrize("kind", ["", "?target_session_attrs=read-write", "?load_balance_hosts=random"])
def test_the_next_host_is_asked_when_the_first_is_silent(
    postgres_server: PostgresServer, harness: Harness, namespace: str, kind: str
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace, response_timeout=WITHIN)
        for name in ("x", "y"):
            hold = await client.lock(name).acquire(timeout=WITHIN)
            assert hold is not None
            await hold.release()

    with silent() as first:
        hosts = f"127.0.0.1:{first.getsockname()[1]},127.0.0.1:{postgres_server.port}"
        url = f"postgresql://postgres@{hosts}/postgres{kind}"
        harness.run(body)


@both
def test_the_next_address_is_asked_when_the_first_is_silent(
    postgres_server: PostgresServer, harness: Harness, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in ("pg.test", b"pg.test"):
            return real(host, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, 0)) for at in ("127.0.0.9", "127.0.0.1")]

    async def body(harness: Harness) -> None:
        url = f"postgresql://postgres@pg.test:{postgres_server.port}/postgres"
        client = harness.client(url, namespace=namespace, response_timeout=WITHIN)
        hold = await client.lock("x").acquire(timeout=WITHIN)
        assert hold is not None
        await hold.release()

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with silent(postgres_server.port, "127.0.0.9"):
        harness.run(body)


@both
def test_silence_after_the_login_ends_with_the_hosts_share_too(
    postgres_server: PostgresServer, harness: Harness, namespace: str
) -> None:
    """As of a pooler that has lost its server."""
    proxied = FaultProxy(postgres_server.port)

    async def body(harness: Harness) -> None:
        hosts = f"127.0.0.1:{proxied.port},127.0.0.1:{postgres_server.port}"
        client = harness.client(f"postgresql://postgres@{hosts}/postgres", namespace=namespace, response_timeout=WITHIN)
        hold = await client.lock("x").acquire(timeout=WITHIN)
        assert hold is not None
        await hold.release()

    with proxied:
        proxied.hold(where=b"pg_backend_pid")
        harness.run(body)


@both
def test_when_all_are_silent_each_is_named_and_the_time_is_kept(harness: Harness, namespace: str) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(f"postgresql://postgres@{hosts}/postgres", namespace=namespace, response_timeout=0.4)
        start = time.monotonic()
        error = await unavailable(client.lock("x").acquire(timeout=0.4))
        assert time.monotonic() - start < 2.4
        assert all(f'at "127.0.0.1", port {port} failed: timed out' in str(error) for port in ports)
        assert str(error).endswith("look whether it is up, reachable and not overloaded")
        assert not error.unknown
        assert not error.lasting

    with silent() as first, silent() as second:
        ports = [one.getsockname()[1] for one in (first, second)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        harness.run(body)


@both
def test_of_a_silent_host_and_a_standby_the_silent_one_is_the_remedy(
    harness: Harness, namespace: str, server: PostgresServer
) -> None:
    """The URL names all hosts already. What is missing is the primary."""

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace, response_timeout=WITHIN)
        error = await unavailable(client.lock("x").acquire(timeout=WITHIN))
        assert "read-only" in str(error)
        assert str(error).endswith("look whether it is up, reachable and not overloaded")

    server.configure(default_transaction_read_only="on")
    with silent() as first:
        hosts = f"127.0.0.1:{first.getsockname()[1]},127.0.0.1:{server.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        harness.run(body)


@both
def test_a_standby_is_passed_over(
    harness: Harness, namespace: str, server: PostgresServer, postgres_server: PostgresServer
) -> None:
    async def body(harness: Harness) -> None:
        hosts = f"127.0.0.1:{server.port},127.0.0.1:{postgres_server.port}"
        hold = (
            await harness.client(f"postgresql://postgres@{hosts}/postgres", namespace=namespace)
            .lock("x")
            .acquire(timeout=5)
        )
        assert hold is not None
        await hold.release()

    server.terminate()
    (server.data / "standby.signal").touch()
    server.start()
    harness.run(body)


@both
@pytest.mark.parametrize("host", ["db..internal", f"{'d' * 64}.internal"], ids=["empty label", "long label"])
def test_a_mistyped_host_is_a_store_that_is_unavailable(harness: Harness, namespace: str, host: str) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(f"postgresql://postgres@{host}/postgres", namespace=namespace, response_timeout=1.0)
        with pytest.raises(StoreUnavailable, match="could not translate host name") as error:
            await client.lock("x").acquire(timeout=1.0)
        assert str(error.value).endswith("check its spelling and the DNS")

    harness.run(body)

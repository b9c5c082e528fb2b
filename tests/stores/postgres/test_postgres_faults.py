"""PostgreSQL under faults: sessions ended, rows locked, replies lost, servers stopped, restarted, read-only, full."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable
from leasehold._runtimes.base import finish
from leasehold.stores._sql.transport import Outcome, Refused, Statement
from leasehold.stores.postgres.connection import transaction
from leasehold.stores.postgres.connection.errors import (
    AGAIN,
    LASTING,
    REMEDIES,
    UNKNOWN_IN_COMMIT,
    outcome_of,
)
from leasehold.stores.postgres.statements import script
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.leaks import sockets

NOISE = 1.0
"""Seconds that a busy machine may be late."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of this test's own, to break."""
    with PostgresServer() as server:
        server.execute(script())
        yield server


@pytest.fixture
def proxied(postgres_server: PostgresServer) -> Iterator[tuple[FaultProxy, str]]:
    with FaultProxy(postgres_server.port) as proxy:
        yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"


async def unavailable(work: Coroutine[Any, Any, object]) -> StoreUnavailable:
    try:
        result = await work
    except StoreUnavailable as error:
        return error
    raise AssertionError(f"StoreUnavailable expected, but it returned {result!r}")


async def queued(harness: Harness, client: Any, name: str, count: int) -> None:
    until = harness.now() + 5
    while (info := await client.inspect(name)) is None or len(info.waiters) != count:
        assert harness.now() < until, info
        await harness.sleep(0.01)


def backends(server: PostgresServer) -> int:
    return server.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND pid <> pg_backend_pid()"
    )[0][0]


def terminate(server: PostgresServer) -> int:
    """End all our backends, as an operator does; return how many there were."""
    return len(
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'")
    )


# --- sessions that end -----------------------------------------------------------------------------------------


@both
def test_terminated_backends_cost_a_reconnection_and_no_lock(server: PostgresServer, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        holder, waiter = harness.client(server.url), harness.client(server.url)
        hold = await holder.lock("x").acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x").acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        await harness.sleep(0.2)
        assert terminate(server) >= 2
        await hold.renew()
        await harness.sleep(0.3)  # the waiter listens again
        start = harness.now()
        await hold.release()
        got = await job.result()
        assert got is not None
        assert harness.now() - start < NOISE
        assert got.token > hold.token
        await got.release()

    harness.run(body)


@both
def test_timeouts_for_idle_sessions_do_not_end_ours(server: PostgresServer, harness: Harness) -> None:
    server.configure(idle_session_timeout="300ms", idle_in_transaction_session_timeout="1ms")

    async def body(harness: Harness) -> None:
        holder, waiter = harness.client(server.url), harness.client(server.url)
        hold = await holder.lock("x").acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x").acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        await harness.sleep(0.2)  # it listens
        before = backends(server)
        await harness.sleep(1.0)
        assert backends(server) == before > 2
        await hold.release()
        got = await job.result()
        assert got is not None
        await got.release()

    harness.run(body)


def test_a_client_that_stalls_with_a_row_locked_is_cut_off(
    postgres_server: PostgresServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STALL", 0.5)
    with (
        Client.from_url(postgres_server.url, namespace=namespace) as stalled,
        Client.from_url(postgres_server.url, namespace=namespace) as other,
    ):
        stalled.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]

        async def stall(tx: Any) -> None:
            store = stalled.store
            await tx.ask(Statement(store._dialect.lock_name, store._key("x")))  # type: ignore[attr-defined]
            time.sleep(1.5)  # noqa: ASYNC251 it blocks: it is the stall
            await tx.commit()

        errors: list[StoreUnavailable] = []

        def run() -> None:
            try:
                finish(stalled.store._transport.transact(stall, within=10))  # type: ignore[attr-defined]
            except StoreUnavailable as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.2)
        start = time.monotonic()
        hold = other.lock("x").acquire(timeout=5)
        assert hold is not None
        assert time.monotonic() - start < 0.5 + NOISE
        hold.release()
        thread.join()
    assert len(errors) == 1
    assert isinstance(errors[0], Refused)
    assert errors[0].code == "25P03"
    assert not errors[0].unknown


# --- rows that are locked --------------------------------------------------------------------------------------


@both
def test_a_locked_row_is_a_clear_error_and_delays_no_other_name(
    postgres_server: PostgresServer, harness: Harness, namespace: str
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(postgres_server.url, namespace=namespace, response_timeout=1.0)
        locked = await client.lock("locked", lease=3.0).acquire(timeout=5)
        other = await client.lock("other", lease=1.5).acquire(timeout=5)
        assert locked is not None
        assert other is not None
        with postgres_server.connect(autocommit=False) as outsider:
            outsider.execute("SELECT 1 FROM leasehold_name WHERE name = 'locked' FOR UPDATE")
            start = harness.now()
            error = await unavailable(client.lock("locked").acquire(timeout=0.5))
            assert harness.now() - start < 1.0 + NOISE
            assert "locked" in str(error)
            assert not error.unknown
            await harness.sleep(1.5)
            other.raise_if_lost()  # its renewals pass over the row that is locked
            outsider.rollback()
        await other.release()
        await locked.release()

    harness.run(body)


# --- replies that are lost -------------------------------------------------------------------------------------


@both
def test_the_next_attempt_finds_a_commit_whose_reply_was_lost(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str
) -> None:
    proxy, url = proxied

    async def body(harness: Harness) -> None:
        client, other = (harness.client(url, namespace=namespace) for _ in range(2))
        for _ in range(3):
            fault = proxy.drop_reply(where=b"COMMIT\0")
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            info = await other.inspect("x")
            assert info is not None
            assert [holder.token for holder in info.holders] == [hold.token]
            fault.remove()
            fault = proxy.drop_reply(where=b"COMMIT\0")
            await hold.release()  # a lost reply to a leave: the repetition finds nothing, and that is no loss
            fault.remove()
            assert await other.inspect("x") is None

    harness.run(body)


@both
def test_a_lost_reply_before_the_commit_means_that_nothing_was_done(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str
) -> None:
    proxy, url = proxied

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        assert await client.inspect("x") is None  # it is connected; a claim is sent as text the first time
        proxy.drop_reply(where=b"FOR UPDATE")
        error = await unavailable(client.lock("x").acquire(timeout=5))
        assert not error.unknown
        assert await client.inspect("x") is None

    harness.run(body)


@both
def test_a_lost_message_costs_no_more_than_the_next_renewal(
    postgres_server: PostgresServer, proxied: tuple[FaultProxy, str], harness: Harness, namespace: str
) -> None:
    proxy, url = proxied
    lease = 1.5

    async def body(harness: Harness) -> None:
        holder, waiter = (harness.client(where, namespace=namespace) for where in (postgres_server.url, url))
        hold = await holder.lock("x").acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x", lease=lease).acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        await harness.sleep(0.2)
        lost = proxy.drop(Side.REPLIES, where=b"leasehold_", nth=1)
        start = harness.now()
        await hold.release()
        got = await job.result()
        assert got is not None
        assert harness.now() - start < lease / 3 + NOISE
        assert lost.hits > 0
        lost.remove()
        await got.release()

    harness.run(body)


@both
def test_a_silent_server_is_an_error_within_the_timeout(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str
) -> None:
    proxy, url = proxied

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace, response_timeout=1.0)
        hold = await client.lock("x", lease=1.2).acquire(timeout=5)
        assert hold is not None
        silence = proxy.blackhole()
        start = harness.now()
        await unavailable(client.lock("y").acquire(timeout=0.5))
        assert harness.now() - start < 1.0 + NOISE
        await harness.sleep(max(0.0, start + 1.3 - harness.now()))
        assert hold.lost
        silence.remove()
        proxy.cut()
        again = await client.lock("x", lease=1.2).acquire(timeout=5)
        assert again is not None
        assert again.token > hold.token
        await again.release()
        try:
            await hold.release()
        except LeaseLost:
            return
        raise AssertionError("a lost hold was released")

    harness.run(body)


def test_a_cancelled_acquire_does_not_wait_for_a_silent_server(proxied: tuple[FaultProxy, str], namespace: str) -> None:
    proxy, url = proxied

    async def body() -> None:
        from leasehold import AsyncClient

        async with AsyncClient.from_url(url, namespace=namespace) as client:
            async with client.lock("warm"):
                pass
            silence = proxy.blackhole()
            start = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.lock("x").acquire()
            # the transaction's grace, and the leave that may be due
            assert asyncio.get_running_loop().time() - start < 0.2 + 0.5 + 1.0 + NOISE
            silence.remove()
            proxy.cut()

    asyncio.run(body())


def test_a_connection_that_is_being_made_ends_with_the_tasks_of_its_loop(server: PostgresServer) -> None:
    """As `asyncio.run` ends them: all at once. What still refers to them does not keep it open."""

    async def main() -> None:
        before = sockets()
        client = AsyncClient.from_url(server.url, response_timeout=30)
        server.pause()
        try:
            ends, tasks = list[Any](), {asyncio.ensure_future(client.lock("x").acquire())}
            while not sockets() - before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # also those that were to undo it
                for task in tasks:
                    task.cancel()
                ends += await asyncio.gather(*tasks, return_exceptions=True)
            assert any(isinstance(end, asyncio.CancelledError) for end in ends)
            assert not sockets() - before
        finally:
            server.resume()
        await client.close()

    asyncio.run(main())


# --- servers ---------------------------------------------------------------------------------------------------


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
def test_a_stopped_server_costs_only_the_hold(server: PostgresServer, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url, response_timeout=1.0)
        hold = await client.lock("x", lease=1.0).acquire(timeout=5)
        assert hold is not None
        server.pause()
        start = harness.now()
        error = await unavailable(client.lock("y").acquire(timeout=0.2))
        assert harness.now() - start < 1.0 + NOISE
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
        server.execute("DROP TRIGGER failing ON leasehold_entry")
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
    """Let the writing of an entry fail with this SQLSTATE, so often."""
    server.execute(
        f"""
        CREATE SEQUENCE IF NOT EXISTS failures;
        CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER failing BEFORE INSERT ON leasehold_entry FOR EACH ROW EXECUTE FUNCTION fail();
        """
    )


# --- the table of errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted({*REMEDIES, *AGAIN, "08006", "40003", "XX000", "58030", "23505", "22001"}))
def test_each_error_is_classed(code: str) -> None:
    inside, commit = outcome_of(code, in_commit=False), outcome_of(code, in_commit=True)
    assert (commit is Outcome.UNKNOWN) == code.startswith(UNKNOWN_IN_COMMIT)
    assert inside is not Outcome.UNKNOWN
    assert (inside is Outcome.LASTING) == code.startswith(LASTING)
    assert (inside is Outcome.AGAIN) == (code in AGAIN)


NO_TABLES: list[tuple[Callable[[str], str], str]] = [
    (lambda url: url, "leasehold init"),
    (lambda url: url + "x", "does not exist"),
    (lambda url: url.replace("postgres:pass", "postgres:wrong"), "password is wrong"),
    (lambda url: url.replace(":pass@", "@"), "put the password into the URL"),
    (lambda url: url.replace("postgres:pass", "nobody:pass"), "password is wrong"),
]


def test_errors_of_a_url_are_clear() -> None:
    with PostgresServer(password="pass") as server:
        for change, words in NO_TABLES:
            with (
                Client.from_url(change(server.url)) as client,
                pytest.raises(StoreUnavailable, match=words),
            ):
                client.lock("x").acquire(timeout=1)
        server.execute(script() + "UPDATE leasehold_meta SET version = 99")
        with Client.from_url(server.url) as client, pytest.raises(Exception, match="made by a newer leasehold"):
            client.lock("x").acquire(timeout=1)


# --- mode=session ----------------------------------------------------------------------------------------------


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

"""PostgreSQL under faults: sessions ended, rows locked, and what each error means."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from postgres_faults import NOISE, backends, hangs_up, terminate

from leasehold import Client, StoreUnavailable
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
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.stores.database_faults import queued, unavailable


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
def test_a_renewal_uses_an_idle_connection_if_the_server_takes_no_more(
    server: PostgresServer, harness: Harness
) -> None:
    """The connection that is kept for renewals is opened by the first of them, and may be refused."""
    server.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1; GRANT ALL ON ALL TABLES IN SCHEMA public TO few")

    async def body(harness: Harness) -> None:
        client = harness.client(f"postgresql://few@127.0.0.1:{server.port}/postgres")
        hold = await client.lock("x").acquire(timeout=5)
        assert hold is not None
        for _ in range(3):
            await hold.renew()
        async with client.lock("y"):
            await hold.renew()
        await hold.release()

    harness.run(body)


@both
@pytest.mark.parametrize("code", ["55P03", "40P01"])
def test_a_connection_that_ended_behind_an_error_is_not_used_again(
    server: PostgresServer, harness: Harness, code: str
) -> None:
    """A lock that is acquired by one statement took the dead connection for one that could be used."""

    async def body(harness: Harness) -> None:
        with hangs_up(server) as proxy:
            client = harness.client(proxy.url)
            hold = await client.lock("x").acquire(timeout=5)  # now there is a row
            assert hold is not None
            await hold.release()
            proxy.answer(b"leasehold_", code)
            error = await unavailable(client.lock("x").acquire(timeout=5))
            assert isinstance(error, Refused)
            assert error.code == code
            for _ in range(2):
                hold = await client.lock("x").acquire(timeout=5)
                assert hold is not None
                await hold.release()

    harness.run(body)


@both
@pytest.mark.parametrize("kind", ["reader", "semaphore"])
def test_a_connection_that_turns_out_to_be_dead_costs_no_call(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str, kind: str
) -> None:
    """A load balancer or a failover by address may answer the next packet with a reset, and say nothing before."""
    proxy, url = proxied

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        lock = client.rw_lock("x").reader() if kind == "reader" else client.semaphore("x", 2)
        await (await lock.acquire(timeout=20)).release()
        reset = proxy.cut_at(1)
        hold = await lock.acquire(timeout=20)
        assert reset.hits == 1
        await hold.release()
        each = proxy.cut_at(0, where=b"BEGIN")
        error = await unavailable(lock.acquire(timeout=20))
        assert not error.unknown
        assert each.hits == 2, "the idle connection, and one new one"
        each.remove()
        await (await lock.acquire(timeout=20)).release()

    harness.run(body)


@both
def test_a_commit_on_a_connection_that_turns_out_to_be_dead_is_not_repeated(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str
) -> None:
    proxy, url = proxied

    async def body(harness: Harness) -> None:
        transport: Any = harness.client(url, namespace=namespace).store._transport  # type: ignore[attr-defined]
        one = Statement("SELECT 1")
        for _ in range(2):
            assert await transport.transact(lambda tx: tx.commit(one), within=20) == [[(1,)]]
        lost = proxy.drop_reply(where=b"COMMIT")
        error = await unavailable(transport.transact(lambda tx: tx.commit(one), within=20))
        assert error.unknown
        assert lost.hits == 1

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

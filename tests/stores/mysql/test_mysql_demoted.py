"""A planned switch-over: the old primary is made read-only and stays up, and its name leads to another server."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from mysql_faults import comes_true, make_tables

from leasehold import LeaseLost, StoreUnavailable
from leasehold._model import Granted
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer
from support.flavors import both
from support.stores.database_faults import queued

OPERATIONS = ("lock", "permit", "several", "value", "break", "look")


@pytest.fixture(scope="module")
def other() -> Iterator[MariaDBServer]:
    """The server to which the name leads afterwards."""
    with MariaDBServer() as running:
        make_tables(running)
        yield running


@pytest.fixture(params=["app", "boss"])
def url(request: pytest.FixtureRequest, server: MariaDBServer, other: MariaDBServer) -> Iterator[str]:
    """The URL of the old primary, for a common user and for one who may write on a read-only server."""
    for each in (server, other):
        each.query("CREATE USER IF NOT EXISTS boss@127.0.0.1")
        each.query("GRANT ALL ON *.* TO boss@127.0.0.1")
    yield server.url.replace("//app@", f"//{request.param}@")
    server.query("SET GLOBAL read_only = 0")


def switch_over(server: MariaDBServer, other: MariaDBServer, *clients: Any) -> None:
    """Connections stay open; new ones go to the other server."""
    for client in clients:
        settings = client.store.mysql._settings
        options = {**settings.options, "port": other.port}
        client.store.mysql._settings = dataclasses.replace(settings, options=options)
    server.query("SET GLOBAL read_only = 1")


def sessions(server: MariaDBServer) -> int:
    found = server.query("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER IN ('app', 'boss')")
    return int(found[0][0])


def written(server: MariaDBServer) -> list[Any]:
    return [
        server.query(f"SELECT * FROM leasehold_{table} ORDER BY 1, 2, 3") for table in ("name", "entry", "cell", "meta")
    ]


async def do(client: Any, operation: str) -> None:
    match operation:
        case "lock":
            hold = await client.lock("x").acquire(timeout=5)
            await hold.release()
        case "permit":
            hold = await client.semaphore("p", 3).acquire(timeout=5)
            await hold.release()
        case "several":
            hold = await client.multi_lock(["a", "b"]).acquire(timeout=5)
            await hold.release()
        case "value":
            await client.versioned("v").put(1)
        case "break":
            assert not await client.force_release("x", 1)
        case _:
            await client.inspect("x")


@both
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_client_follows_the_name_to_the_new_primary(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness, operation: str
) -> None:
    """Each operation succeeds there at once, and the old primary is neither written to nor connected to any more."""

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        await harness.gather(*(do(client, one) for one in OPERATIONS))  # several connections, all idle afterwards
        switch_over(server, other, client)
        before = written(server)
        await do(client, operation)
        assert written(server) == before
        await comes_true(harness, lambda: sessions(server) == 0)

    harness.run(body)


@both
def test_a_hold_of_the_old_primary_is_not_renewed_there(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    """The new primary decides; here it has not replicated the hold."""

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        hold = await client.lock("x", lease=60.0).acquire(timeout=5)
        assert hold is not None
        await hold.renew()
        switch_over(server, other, client)
        before = written(server)
        with pytest.raises(LeaseLost):
            await hold.renew()
        assert written(server) == before

    harness.run(body)


@both
@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["rows", "session"])
def test_a_connection_that_was_just_opened_is_no_exception(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness, mode: str
) -> None:
    """The server took writes when it was opened, and does not at its first request."""

    async def body(harness: Harness) -> None:
        client: Any = harness.client(url + mode, namespace=namespace)
        pool = client.store.mysql.pool
        connect = pool._connect

        async def slowly(within: float) -> Any:
            pool._connect = connect
            connection = await connect(within)
            switch_over(server, other, client)
            return connection

        pool._connect = slowly
        before = written(server)
        await do(client, "lock")
        assert written(server) == before

    harness.run(body)


@both
def test_a_connection_in_use_meanwhile_is_not_used_again(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    """Polls only read, so a connection that only polls would go on with the old primary."""

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        await do(client, "lock")
        transport = client.store.mysql  # type: ignore[attr-defined]
        taken, _ = await transport.pool.take(harness.now() + 5)
        await do(client, "lock")
        switch_over(server, other, client)
        await do(client, "lock")
        await transport.pool.give(taken)
        assert not taken.usable()

    harness.run(body)


@both
def test_a_read_only_server_without_a_successor_is_an_error_and_then_goes_on(
    server: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        for one in OPERATIONS:
            await do(client, one)
        server.query("SET GLOBAL read_only = 1")
        before = written(server)
        for one in OPERATIONS[:-1]:
            with pytest.raises(StoreUnavailable, match="read-only") as caught:
                await do(client, one)
            assert not caught.value.unknown
        assert written(server) == before
        server.query("SET GLOBAL read_only = 0")
        for one in OPERATIONS:
            await do(client, one)

    harness.run(body)


# --- mode=session --------------------------------------------------------------------------------------------------


@both
def test_sessions_follow_the_name_too(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    """A free lock is acquired from the new primary at once, whoever could still get it from the old one."""

    async def body(harness: Harness) -> None:
        client = harness.client(f"{url}?mode=session", namespace=namespace)
        await do(client, "lock")
        switch_over(server, other, client)
        before, there = written(server), written(other)
        await do(client, "lock")
        assert written(server) == before
        assert written(other) != there
        await comes_true(harness, lambda: sessions(server) == 0)

    harness.run(body)


@both
def test_a_session_on_a_read_only_server_is_in_doubt(
    server: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    """Others may have the lock on the new primary; but if it was no switch-over, the hold goes on."""

    async def body(harness: Harness) -> None:
        client = harness.client(f"{url}?mode=session", namespace=namespace)
        hold = await client.lock("x", lease=60.0).acquire(timeout=5)
        assert hold is not None
        await hold.renew()
        server.query("SET GLOBAL read_only = 1")
        with pytest.raises(StoreUnavailable, match="read-only"):
            await hold.renew()
        assert not hold.lost
        server.query("SET GLOBAL read_only = 0")
        await hold.renew()
        assert await hold.release()

    harness.run(body)


@both
def test_a_waiter_that_waits_in_the_old_primary_acquires_from_the_new_one(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        holder, client = (harness.client(f"{url}?mode=session", namespace=namespace) for _ in range(2))
        hold = await holder.lock("x", lease=60.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: client.lock("x", lease=60.0).acquire(timeout=30))
        words = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
        await comes_true(harness, lambda: server.query(words) == [(1,)])
        await queued(harness, holder, "x", 1)
        ((asked,),) = server.query("SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'")
        waits = re.search(r"GET_LOCK\([^,]+, *(\d+)\)", asked)
        assert waits is not None, asked
        assert int(waits[1]) <= 5, "seconds after which it goes to the new primary, by the documentation"
        switch_over(server, other, holder, client)
        before, there = written(server), written(other)
        with contextlib.suppress(StoreUnavailable):  # its row cannot be removed there
            await hold.release()
        got = await job.result()
        assert got is not None
        assert [row for row in written(server)[1] if row not in before[1]] == []
        assert written(other)[1] != there[1], "its entry is there"
        assert await got.release()

    harness.run(body)


@both
@pytest.mark.parametrize("join", [False, True], ids=["at once", "waiting"])
def test_a_lock_that_the_old_primary_gave_just_before_grants_nothing(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness, join: bool
) -> None:
    """Between GET_LOCK and the token: the attempt goes on at the new primary, where others look, too."""

    async def body(harness: Harness) -> None:
        client, second = (harness.client(f"{url}?mode=session", namespace=namespace) for _ in range(2))
        await do(client, "lock")
        store: Any = client.store
        take = store._take_token

        async def late(session: Any, until: float) -> Any:
            store._take_token = take
            switch_over(server, other, client, second)
            return await take(session, until)

        store._take_token = late
        hold = await client.lock("x", lease=60.0).acquire(timeout=5 if join else 0)
        assert hold is not None
        assert await second.lock("x").acquire(timeout=0) is None
        await hold.renew()
        assert await hold.release()

    harness.run(body)


@both
@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["rows", "session"])
def test_a_ping_fails_on_a_read_only_server(
    server: MariaDBServer, url: str, namespace: str, harness: Harness, mode: str
) -> None:
    """As an acquire would, also over a connection that was open before."""

    async def body(harness: Harness) -> None:
        client = harness.client(url + mode, namespace=namespace)
        await do(client, "lock")
        await client.ping()
        server.query("SET GLOBAL read_only = 1")
        with pytest.raises(StoreUnavailable, match="read-only"):
            await client.ping()
        server.query("SET GLOBAL read_only = 0")
        await client.ping()

    harness.run(body)


@both
def test_an_attempt_of_a_hold_on_the_old_primary_leaves_no_session_there(
    server: MariaDBServer, other: MariaDBServer, url: str, namespace: str, harness: Harness
) -> None:
    """As after an answer that got lost: the attempt is repeated, and acquires from the new primary."""

    async def body(harness: Harness) -> None:
        client = harness.client(f"{url}?mode=session", namespace=namespace)
        hold = await client.lock("x", lease=60.0).acquire(timeout=5)
        assert hold is not None
        store: Any = client.store
        (session,) = store._sessions._holds.values()
        switch_over(server, other, client)
        granted = await store.try_acquire("x", session.ticket, join=False, within=5.0)
        assert isinstance(granted, Granted)
        await comes_true(harness, lambda: sessions(server) == 0)
        assert await hold.release()

    harness.run(body)

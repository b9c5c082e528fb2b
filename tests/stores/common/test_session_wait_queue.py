"""``mode=session``: the waiters of a client share one connection in the server's queue, also when one fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold import Client
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer, PostgresServer
from support.flavors import both
from support.patience import until
from support.stores.killed_clients import parties

WAITERS = 40
NOISE = 1.0

ENTRIES = "SELECT count(*) FROM leasehold_entry JOIN leasehold_name ON id = name_id WHERE {} > 0"


class Database:
    """A server, and how to ask it who waits in its queue, and how many entries are written down in a namespace."""

    def __init__(
        self,
        url: str,
        waiting: Callable[[], list[int]],
        end: Callable[[int], object],
        entries: Callable[[str], list[tuple[Any, ...]]],
    ) -> None:
        self.url = f"{url}?mode=session"
        self.waiting = waiting
        self.end = end
        self.entries = lambda namespace: entries(namespace)[0][0]


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        waits = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted"
        return Database(
            server.url,
            lambda: [row[0] for row in server.query(waits)],
            lambda pid: server.query("SELECT pg_terminate_backend(%s)", (pid,)),
            lambda namespace: server.query(ENTRIES.format("position(%s::bytea IN space)"), (namespace.encode(),)),
        )
    url: str = request.getfixturevalue("mariadb_url")
    maria: MariaDBServer = request.getfixturevalue("mariadb_server")
    waits = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE '%%GET_LOCK%%' AND STATE LIKE 'User%%'"
    return Database(
        url,
        lambda: [row[0] for row in maria.query(waits.replace("%%", "%"))],
        lambda session: maria.query(f"KILL CONNECTION {session:d}"),
        lambda namespace: maria.query(ENTRIES.format("LOCATE(%s, space)"), namespace.encode()),
    )


async def comes_true(harness: Harness, what: Callable[[], Any], within: float = 20.0) -> None:
    until = harness.now() + within
    while not what():
        assert harness.now() < until
        await harness.sleep(0.01)


async def shown(harness: Harness, client: Any, count: int) -> None:
    until = harness.now() + 20
    while (info := await client.inspect("x")) is None or len(info.waiters) != count:
        assert harness.now() < until, info
        await harness.sleep(0.02)


@both
def test_all_waiters_of_a_client_have_one_session_and_enter_in_order(
    database: Database, harness: Harness, namespace: str
) -> None:
    async def body(harness: Harness) -> None:
        holder, waiters = (harness.client(database.url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x").acquire(timeout=5)
        entered: list[int] = []
        tokens: list[int] = [hold.token]

        async def one(number: int) -> None:
            mine = await waiters.lock("x").acquire(timeout=60)
            entered.append(number)
            tokens.append(mine.token)
            await mine.release()

        jobs = []
        for number in range(WAITERS):
            jobs.append(harness.spawn(lambda number=number: one(number)))
            if number < 5:
                await shown(harness, holder, number + 1)  # the first few surely come in this order
        await shown(harness, holder, WAITERS)
        assert len(database.waiting()) == 1
        await hold.release()
        for job in jobs:
            await job.result()
        assert entered[:5] == [0, 1, 2, 3, 4]
        assert sorted(entered) == list(range(WAITERS))
        assert tokens == sorted(set(tokens))
        assert await holder.inspect("x") is None
        assert database.waiting() == []

    harness.run(body)


@both
def test_a_waiter_that_gives_up_leaves_its_session_to_the_next(
    database: Database, harness: Harness, namespace: str
) -> None:
    async def body(harness: Harness) -> None:
        holder, waiters = (harness.client(database.url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x").acquire(timeout=5)
        first = harness.spawn(lambda: waiters.lock("x").acquire(timeout=0.7))
        await shown(harness, holder, 1)
        second = harness.spawn(lambda: waiters.lock("x").acquire(timeout=30))
        await shown(harness, holder, 2)
        parked = database.waiting()
        assert len(parked) == 1
        assert await first.result() is None
        assert database.waiting() == parked
        await hold.release()
        got = await second.result()
        assert got.token > hold.token
        await got.release()
        third = harness.spawn(lambda: waiters.lock("x").acquire(timeout=0.3))
        assert await (await third.result()).release()
        again = await holder.lock("x").acquire(timeout=5)
        last = harness.spawn(lambda: waiters.lock("x").acquire(timeout=0.3))
        assert await last.result() is None
        await comes_true(harness, lambda: not database.waiting(), 1.0 + NOISE)  # with nobody left it does not stay
        await again.release()

    harness.run(body)


@both
def test_a_broken_session_does_not_cost_a_waiter_its_queue_entry(
    database: Database, harness: Harness, namespace: str
) -> None:
    async def body(harness: Harness) -> None:
        holder, waiters = (harness.client(database.url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x").acquire(timeout=5)
        entered: list[int] = []

        async def one(number: int) -> None:
            mine = await waiters.lock("x").acquire(timeout=60)
            entered.append(number)
            await mine.release()

        jobs = []
        for number in range(3):
            jobs.append(harness.spawn(lambda number=number: one(number)))
            await shown(harness, holder, number + 1)
        for _ in range(3):
            (parked,) = database.waiting()
            database.end(parked)
            await comes_true(harness, lambda: database.waiting() not in ([], [parked]))  # noqa: B023
        assert entered == []
        await hold.release()
        for job in jobs:
            await job.result()
        assert entered == [0, 1, 2]

    harness.run(body)


@both
def test_two_clients_take_turns(database: Database, harness: Harness, namespace: str) -> None:
    """One session of each stands in the server's queue: none of them waits for all of the other."""

    async def body(harness: Harness) -> None:
        clients = [harness.client(database.url, namespace=namespace) for _ in range(2)]
        hold = await clients[0].lock("x").acquire(timeout=5)
        entered: list[int] = []

        async def one(which: int) -> None:
            mine = await clients[which].lock("x").acquire(timeout=60)
            entered.append(which)
            await harness.sleep(0.05)
            await mine.release()

        jobs = [harness.spawn(lambda: one(0)) for _ in range(8)]
        await shown(harness, clients[0], 8)
        jobs += [harness.spawn(lambda: one(1)) for _ in range(8)]
        await shown(harness, clients[0], 16)
        assert len(database.waiting()) == 2
        await hold.release()
        for job in jobs:
            await job.result()
        assert 1 in entered[:4]
        assert sorted(entered) == [0] * 8 + [1] * 8

    harness.run(body)


def test_the_entry_of_a_killed_waiter_is_removed_at_the_next_acquire(database: Database, namespace: str) -> None:
    """Its queue must end without a further waiter: a name that is always free when requested would keep it for ever."""
    lease = 1.0
    with parties() as start, Client.from_url(database.url, namespace=namespace) as client:
        hold = client.lock("x").acquire()
        waiter = start(SimpleNamespace(url=database.url), namespace, "blocking", "wait", lease, "x")
        until(lambda: database.entries(namespace) == 2, 20.0)
        waiter.kill()
        hold.release()
        with client.lock("x"):
            assert database.entries(namespace) == 2, "it may only be slow"
        time.sleep(2 * lease + 0.1)
        with client.lock("x"):
            assert database.entries(namespace) == 1
        assert database.entries(namespace) == 0

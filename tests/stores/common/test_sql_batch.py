"""Several names of one database in one transaction: all or none, in one order, found again after a lost commit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, Wait, ticket_id
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer, PostgresServer
from support.flavors import both

NOISE = 1.0
"""Seconds that a busy machine may be late."""

NAMES = ("a", "b", "c")


class Database:
    """One kind of server: where it is, and what a commit looks like on its transport."""

    def __init__(self, server: Any, url: str, commit: bytes, deadlocks: Callable[[], int]) -> None:
        self.server = server
        self.url = url
        self.commit = commit
        self.deadlocks = deadlocks

    def through(self, proxy: FaultProxy) -> str:
        return self.url.replace(f":{self.server.port}/", f":{proxy.port}/")


@pytest.fixture(params=["mariadb", "postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    if request.param == "mariadb":
        maria: MariaDBServer = request.getfixturevalue("mariadb_server")
        status = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
        url = request.getfixturevalue("mariadb_url")
        return Database(maria, url, b"; COMMIT", lambda: int(maria.query(status)[0][1]))
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    log = "SELECT pg_stat_force_next_flush(), deadlocks FROM pg_stat_database WHERE datname = current_database()"
    url = f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
    return Database(postgres, url, b"COMMIT\0", lambda: postgres.query(log)[0][1])


@pytest.fixture
def proxy(database: Database) -> Iterator[FaultProxy]:
    with FaultProxy(database.server.port) as proxy:
        yield proxy


def ticket() -> Ticket:
    return Ticket(ticket_id(os.urandom(16)), LeaseTerms(LockMode(), Owner("h", 1, "c"), 30.0))


def tickets(names: Sequence[str] = NAMES) -> list[tuple[str, Ticket]]:
    return [(name, ticket()) for name in names]


async def held_by(client: Any) -> dict[str, list[int | None]]:
    return {info.name: [holder.token for holder in info.holders] for info in await client.holds()}


@both
@pytest.mark.parametrize("taken", NAMES)
def test_all_or_nothing_when_one_is_taken(database: Database, namespace: str, harness: Harness, taken: str) -> None:
    """Without ``keep`` a name that is taken leaves no trace of the others; with it those before it are had."""

    async def body(harness: Harness) -> None:
        client, other = (harness.client(database.url, namespace=namespace) for _ in range(2))
        hold = await other.lock(taken).acquire(timeout=5)
        assert hold is not None
        before = await held_by(client)
        (answer,) = await client.store.try_acquire_many(tickets(), keep=False, within=5)
        assert isinstance(answer, Wait)
        assert answer.held_by is not None
        assert await held_by(client) == before == {taken: [hold.token]}
        some = tickets()
        answers = await client.store.try_acquire_many(some, keep=True, within=5)
        had = NAMES.index(taken)
        assert [type(one) for one in answers] == [Granted] * had + [Wait]
        assert set(await held_by(client)) == set(NAMES[: had + 1])
        assert await client.store.release_many(some, within=5) == [True] * had + [False] * (3 - had)
        await hold.release()

    harness.run(body)


@both
@pytest.mark.parametrize("commit", [2, 4], ids=["of a name", "of the grants"])
@pytest.mark.parametrize("delivered", [True, False], ids=["reply lost", "request lost"])
def test_a_lost_commit_is_found_again_for_all_names(
    database: Database, proxy: FaultProxy, namespace: str, harness: Harness, commit: int, delivered: bool
) -> None:
    async def body(harness: Harness) -> None:
        client, other = (harness.client(url, namespace=namespace) for url in (database.through(proxy), database.url))
        fault = (proxy.drop_reply if delivered else proxy.cut_at)(commit, where=database.commit)
        hold = await client.multi_lock(NAMES).acquire(timeout=5)
        assert fault.hits == 1
        assert await held_by(other) == {name: [hold.tokens[name]] for name in NAMES}
        fault.remove()
        fault = (proxy.drop_reply if delivered else proxy.cut_at)(1, where=database.commit)
        await hold.release()
        assert fault.hits == 1
        assert await held_by(other) == {}

    harness.run(body)


@both
@pytest.mark.parametrize("keep", [False, True], ids=["all", "some"])
def test_an_acquire_that_is_retried_too_late_leaves_nothing(
    database: Database, namespace: str, harness: Harness, keep: bool
) -> None:
    """The answer to the first was lost, and another client got one name before the second."""

    async def body(harness: Harness) -> None:
        client, other = (harness.client(database.url, namespace=namespace) for _ in range(2))
        mine = tickets()
        first = await client.store.try_acquire_many(mine, keep=keep, within=5)
        again = await client.store.try_acquire_many(mine, keep=keep, within=5)
        assert [one.token for one in again] == [one.token for one in first]  # type: ignore[union-attr]
        await other.store.release(*mine[1], reason=ReleaseReason.BREAK, within=5)
        hold = await other.lock("b").acquire(timeout=5)
        assert hold is not None
        late = await client.store.try_acquire_many(mine, keep=keep, within=5)
        assert isinstance(late[-1], Wait)
        assert len(late) == (2 if keep else 1)
        kept = {"a": [first[0].token]} if keep else {}  # type: ignore[union-attr]
        assert await held_by(client) == {"b": [hold.token]} | kept
        await client.store.release_many(mine, within=5)
        await hold.release()

    harness.run(body)


@both
def test_a_waiter_for_one_of_the_names_is_notified(database: Database, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=namespace)
        hold = await client.multi_lock(NAMES).acquire(timeout=5)
        jobs = []
        for name in NAMES:
            waiter = harness.client(database.url, namespace=namespace).lock(name)
            jobs.append(harness.spawn(lambda waiter=waiter: waiter.acquire(timeout=20)))
        until = harness.now() + 5
        while sum(len(info.waiters) for info in await client.holds()) < 3:
            assert harness.now() < until
            await harness.sleep(0.01)
        await harness.sleep(0.2)  # they listen, where the store sends messages
        start = harness.now()
        await hold.release()
        for name, job in zip(NAMES, jobs, strict=True):
            got = await job.result()
            assert harness.now() - start < NOISE
            assert got.token > hold.tokens[name]
            await got.release()

    harness.run(body)


@both
def test_a_hundred_names_and_any_order_make_no_deadlock(database: Database, namespace: str, harness: Harness) -> None:
    """Claims lock rows in one order, whatever their own is; so none is rolled back by a deadlock."""
    names = [f"n{number:03}" for number in range(100)]

    async def body(harness: Harness) -> None:
        clients = [harness.client(database.url, namespace=namespace) for _ in range(3)]
        everything = tickets(names)
        granted = await clients[0].store.try_acquire_many(everything, keep=False, within=30)
        assert all(isinstance(one, Granted) for one in granted)
        assert await clients[0].store.release_many(everything, within=30) == [True] * 100
        before = database.deadlocks()

        async def contend(number: int) -> None:
            chance = random.Random(number)
            for turn in range(30):
                known = names[:12] if turn % 2 else [f"new{turn}-{name}" for name in names[:12]]
                some = tickets(chance.sample(known, 8))
                await clients[number].store.try_acquire_many(some, keep=bool(chance.randrange(2)), within=30)
                await clients[number].store.release_many(some, within=30)

        await harness.gather(*[contend(number) for number in range(3)])
        assert await held_by(clients[0]) == {}
        assert database.deadlocks() == before

    harness.run(body)

"""What each operation costs on PostgreSQL: round trips and statements, as the page says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from leasehold.stores.postgres.connection.exchange import Connection
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.stores.doc_pages import numbers


def stated(label: str) -> tuple[int, ...]:
    """Return round trips and statements, as the page states them."""
    return numbers("postgresql", label)[::-1]


Cost = Callable[[], tuple[int, int]]
"""Returns the round trips and the statements since it was called before."""


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Cost:
    counts: Counter[str] = Counter()
    original = Connection.exchange

    def counted(self: Connection, statements: Any) -> Any:
        counts["trips"] += 1
        counts["statements"] += len(statements)
        return original(self, statements)

    def taken() -> tuple[int, int]:
        found = counts["trips"], counts["statements"]
        counts.clear()
        return found

    monkeypatch.setattr(Connection, "exchange", counted)
    return taken


async def in_line(harness: Harness, client: Any) -> None:
    """Wait until a waiter for ``x`` is queued, and sends nothing more."""
    until = harness.now() + 5
    while (info := await client.inspect("x")) is None or not info.waiters:
        assert harness.now() < until
        await harness.sleep(0.01)
    await harness.sleep(0.3)


@both
def test_what_each_operation_costs(
    postgres_server: PostgresServer, namespace: str, harness: Harness, cost: Cost, way: str
) -> None:
    """Round trips and statements, as the documentation states them; and that who waits does not poll."""
    acquire, release = ((2, 6), (2, 6)) if way == "steps" else ((1, 1), (1, 1))

    async def body(harness: Harness) -> None:
        client, other = (harness.client(postgres_server.url, namespace=namespace) for _ in range(2))
        several = client.multi_lock(["a", "b", "c"])
        await (await several.acquire(timeout=5)).release()
        for locks in (client, other):
            hold = await locks.lock("x").acquire(timeout=5)
            assert hold is not None
            await hold.renew()  # on the connection that is kept for renewals
            await hold.release()
        cost()
        hold = await client.lock("x").acquire(timeout=5)
        assert hold is not None
        # one statement; else begin, limits, lock, entries; name, commit
        assert cost() == (stated("acquire of a free name") if way == "alone" else stated("acquire")) == acquire
        await hold.renew()
        # begin, limits, lock; renew holders, renew entries, results, commit
        assert cost() == stated("renewal of all holds of a client") == (2, 7)
        await hold.release()
        # one statement; else begin, limits, lock, entries; name, commit
        assert cost() == (stated("release without waiters") if way == "alone" else stated("release")) == release
        await (await client.lock("new").acquire(timeout=5)).release()
        first, (once, again) = stated("first use of a name in an hour"), (stated("acquire"), stated("release"))
        both = (once, again) if way == "steps" else ((1, 1), once, release)  # a statement that finds no row
        assert cost() == tuple(map(sum, zip(first, *both, strict=True)))
        three = await several.acquire(timeout=5)
        # begin, limits, 3 locks, 3 times entries; 3 names, commit
        assert cost() == stated("acquire of three names at once") == (2, 12)
        await three.release()
        # begin, limits, 3 locks, 3 times entries; 3 names, commit
        assert cost() == stated("release of three names at once") == (2, 12)
        hold = await client.lock("x").acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: other.lock("x").acquire(timeout=20))
        await in_line(harness, client)
        cost()
        await harness.sleep(1.5)
        assert cost() == stated("waiting") == (0, 0)  # until its renewal
        await hold.release()
        got = await job.result()
        assert got is not None
        # as a release, and who listens, the next waiter's entry, the message; no claim. Before, one statement
        handed = stated("release with a hand-over to another client")
        assert cost() == (handed if way == "steps" else (handed[0] + 1, handed[1] + 1))
        assert handed == (3, 9)
        await got.release()

    harness.run(body)


@both
def test_what_each_operation_costs_with_sessions(
    postgres_server: PostgresServer, namespace: str, harness: Harness, cost: Cost
) -> None:
    """As above, for ``mode=session``: an uncontended pair, a renewal, and a wait of which the server takes care."""

    async def body(harness: Harness) -> None:
        url = f"{postgres_server.url}?mode=session"
        client, other = (harness.client(url, namespace=namespace) for _ in range(2))
        for locks in (client, other):
            hold = await locks.lock("x", lease=9.0).acquire(timeout=5)
            assert hold is not None
            await hold.renew()
            await hold.release()
        cost()
        hold = await client.lock("x", lease=9.0).acquire(timeout=5)
        assert hold is not None
        # try the lock, how long it lives without news; token and entry
        assert cost() == stated("`mode=session`: acquire") == (2, 3)
        await hold.renew()
        # the entry, which is news for the server
        assert cost() == stated("`mode=session`: renewal of one hold") == (1, 1)
        await hold.release()
        assert cost() == stated("`mode=session`: release") == (1, 2)  # entry, lock
        hold = await client.lock("x", lease=9.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: other.lock("x", lease=9.0).acquire(timeout=20))
        await in_line(harness, client)
        cost()
        await harness.sleep(1.0)
        assert cost() == stated("`mode=session`: waiting") == (0, 0)  # the server lets it wait
        await hold.release()
        got = await job.result()
        assert got is not None
        # as a release, and the token and the entry of who waited
        assert cost() == stated("`mode=session`: release with a hand-over to another client") == (2, 3)
        await got.release()

    harness.run(body)

"""PostgreSQL and its clients' lives: killed holders and waiters, cancellation, forks, what each operation costs."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from leasehold import AsyncClient, Client
from leasehold._model import Change
from leasehold.stores.postgres.connection.exchange import Connection
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.patience import until
from support.steps import TO_THE_END, after_steps
from support.stores.doc_pages import numbers
from support.stores.killed_clients import CRASH_BOUND, crash, parties

flavors = pytest.mark.parametrize("flavor", ["blocking", "asyncio"])

SLOW = 2.0
"""Seconds of a busy machine."""

STEPS = 40
"""More steps of the loop than an acquire, a wait and a release take."""

# --- killed ----------------------------------------------------------------------------------------------------


@flavors
def test_a_killed_holders_locks_are_free_within_the_lease(
    postgres_server: PostgresServer, namespace: str, flavor: str
) -> None:
    late = crash(postgres_server, namespace, flavor, 8, 1.5)
    print(f"free {max(late) * 1000:.0f} ms after the lease at the latest")
    assert max(late) < CRASH_BOUND


@pytest.mark.parametrize("victims", [(0,), (0, 1, 2)], ids=["first", "all but one"])
@flavors
def test_killed_waiters_hold_up_nobody(
    postgres_server: PostgresServer, namespace: str, flavor: str, victims: tuple[int, ...]
) -> None:
    """Ghosts: their sessions are gone, so they are passed over at once and not at the end of their leases."""
    with parties() as start, Client.from_url(postgres_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        assert hold is not None
        waiters = []
        for number in range(4):
            waiters.append(start(postgres_server, namespace, flavor, "wait", 30.0, "x"))
            until(lambda n=number: len(locks.inspect("x").waiters) == n + 1, 20)  # type: ignore[misc,union-attr]
        hints = "SELECT count(*) FROM leasehold_entry WHERE hint <> ''"
        until(lambda: postgres_server.query(hints)[0][0] >= 4, 10)
        for victim in victims:
            waiters[victim].kill()
        time.sleep(0.2)
        released = time.monotonic()
        hold.release()
        for number, waiter in enumerate(waiters):
            if number not in victims:
                said = waiter.hear()
                said = said if "token" in said else waiter.hear()
                assert said["at"] - released < 1.0
        until(lambda: locks.holds() == [], 2.0)


def test_a_killed_waiter_that_was_passed_over_is_removed_after_a_second(
    postgres_server: PostgresServer, namespace: str
) -> None:
    """It might only have lost its connection: so its place is kept for a second, and not for its lease."""
    with parties() as start, Client.from_url(postgres_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        assert hold is not None
        dead = start(postgres_server, namespace, "blocking", "wait", 30.0, "x")
        until(lambda: len(locks.inspect("x").waiters) == 1, 20)  # type: ignore[union-attr]
        hint = (
            "SELECT count(*) FROM leasehold_entry JOIN leasehold_name ON id = name_id WHERE space = %s AND hint <> ''"
        )
        until(lambda: postgres_server.query(hint, (namespace.encode(),))[0][0] == 1, 10)
        dead.kill()
        time.sleep(0.2)
        hold.release()
        released = time.monotonic()
        until(lambda: locks.inspect("x") is None, 1.0 + SLOW)
        assert time.monotonic() - released > 0.5, "it has kept its place"


# --- cancelled -------------------------------------------------------------------------------------------------


def entries(server: PostgresServer, namespace: str) -> int:
    text = "SELECT count(*) FROM leasehold_entry JOIN leasehold_name ON id = name_id WHERE space = %s"
    return int(server.query(text, (namespace.encode(),))[0][0])


async def gone(server: PostgresServer, namespace: str, limit: float = 2.0) -> None:
    end = asyncio.get_running_loop().time() + limit
    while entries(server, namespace):
        assert asyncio.get_running_loop().time() < end, "an entry is left behind"
        await asyncio.sleep(0.01)


def idle(server: PostgresServer) -> bool:
    """Say whether no backend of ours is in a transaction."""
    text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND state NOT IN ('idle')"
    return not server.query(text)[0][0]


@pytest.mark.parametrize("cold", [True, False], ids=["while connecting", "connected"])
def test_cancel_a_free_acquire_at_each_step(postgres_server: PostgresServer, namespace: str, cold: bool) -> None:
    async def body() -> None:
        locks = AsyncClient.from_url(postgres_server.url, namespace=namespace)
        outcomes = set()
        for k in (*range(0, STEPS, 3 if cold else 1), TO_THE_END):
            if cold:
                await locks.close()
                locks = AsyncClient.from_url(postgres_server.url, namespace=namespace)
            else:
                await locks.lock("warm").acquire(blocking=False)
            task = asyncio.ensure_future(locks.lock("x").acquire())
            await after_steps(k, task)
            if not task.cancelled():
                hold = task.result()
                assert hold is not None
                await hold.release()
            outcomes.add(task.cancelled())
            assert await locks.inspect("x") is None
        assert outcomes == {True, False}
        await locks.close()
        assert idle(postgres_server)

    asyncio.run(body())


@pytest.mark.parametrize("hand_over", [False, True], ids=["queued", "during the hand-over"])
def test_cancel_a_waiter_at_each_step(postgres_server: PostgresServer, namespace: str, hand_over: bool) -> None:
    async def body() -> None:
        async with (
            AsyncClient.from_url(postgres_server.url, namespace=namespace) as locks,
            AsyncClient.from_url(postgres_server.url, namespace=namespace) as others,
        ):
            for k in range(0, STEPS, 2):
                hold = await others.lock("x").acquire()
                assert hold is not None
                task = asyncio.ensure_future(locks.lock("x").acquire())
                if hand_over:
                    while (info := await others.inspect("x")) is None or not info.waiters:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
                    release = asyncio.ensure_future(hold.release())
                    await after_steps(k, task)
                    await release
                else:
                    await after_steps(k, task)
                    await hold.release()
                if not task.cancelled():
                    got = task.result()
                    assert got is not None
                    await got.release()
                await gone(postgres_server, namespace)

    asyncio.run(body())
    assert idle(postgres_server)


def test_cancel_a_release_at_each_step(postgres_server: PostgresServer, namespace: str) -> None:
    async def body() -> None:
        async with AsyncClient.from_url(postgres_server.url, namespace=namespace) as locks:
            for k in range(1, STEPS // 2):  # a task that is cancelled before its first step does nothing at all
                hold = await locks.lock("x").acquire()
                assert hold is not None
                await after_steps(k, asyncio.ensure_future(hold.release()))
                await gone(postgres_server, namespace, limit=0.5)  # and not only by the lease

    asyncio.run(body())


def test_randomly_cancelled_calls_never_mix_up_answers(postgres_server: PostgresServer, namespace: str) -> None:
    """Each call asks for something of its own; an answer that went astray would be somebody else's value."""
    chance, numbers = random.Random(20), itertools.count()

    async def body() -> None:
        async with AsyncClient.from_url(postgres_server.url, namespace=namespace) as locks:
            store = locks.store
            for i in range(20):
                await store.compare_and_set(f"cell-{i}", Change(b"value-%d" % i))

            async def ask() -> bool:
                i = next(numbers) % 20
                cell = await store.compare_and_set(f"cell-{i}", Change())
                assert cell.value == b"value-%d" % i
                return True

            async def lock() -> bool:
                i = next(numbers) % 20
                async with locks.lock(f"lock-{i}", lease=5.0):
                    return True

            right = 0
            for _ in range(6):
                tasks = [asyncio.ensure_future(ask() if i % 2 else lock()) for i in range(80)]
                await asyncio.sleep(chance.random() / 20)
                for task in chance.sample(tasks, 40):
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                wrong = [r for r in results if r is not True and not isinstance(r, asyncio.CancelledError)]
                assert wrong == []
                right += sum(r is True for r in results)
            assert right > 200
            assert await locks.holds() == []

    asyncio.run(body())


# --- forked ----------------------------------------------------------------------------------------------------


def test_a_forked_child_ends_no_session_of_its_parent(postgres_server: PostgresServer, namespace: str) -> None:
    with Client.from_url(postgres_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        assert hold is not None
        assert locks.lock("x").acquire(timeout=0.1) is None  # it listens
        before = postgres_server.query("SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold'")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                mine = locks.lock("child").acquire(timeout=5)  # a connection of its own
                code = 0 if mine is not None and mine.release() else 2
                locks.close()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        after = postgres_server.query("SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold'")
        assert {row[0] for row in before} <= {row[0] for row in after}
        hold.renew()
        hold.release()


# --- counted ---------------------------------------------------------------------------------------------------


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
    """Wait until somebody waits for ``x``, and has come to rest."""
    until = harness.now() + 5
    while (info := await client.inspect("x")) is None or not info.waiters:
        assert harness.now() < until
        await harness.sleep(0.01)
    await harness.sleep(0.3)


@both
def test_what_each_operation_costs(
    postgres_server: PostgresServer, namespace: str, harness: Harness, cost: Cost
) -> None:
    """Round trips and statements, as the documentation states them; and that who waits does not poll."""

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
        assert cost() == stated("acquire") == (2, 7)  # begin, limits, lock, entries; name, entry, commit
        await hold.renew()
        # begin, limits, lock; renew, standings, commit
        assert cost() == stated("renewal of all holds of a client") == (2, 6)
        await hold.release()
        assert cost() == stated("release") == (2, 6)  # begin, limits, lock, entries; entry, commit
        await (await client.lock("new").acquire(timeout=5)).release()
        first, (once, again) = stated("first use of a name in an hour"), (stated("acquire"), stated("release"))
        assert cost() == (first[0] + once[0] + again[0], first[1] + once[1] + again[1])
        three = await several.acquire(timeout=5)
        # begin, limits, 3 locks, 3 times entries; 3 names, 3 entries, commit
        assert cost() == stated("acquire of three names at once") == (2, 15)
        await three.release()
        # begin, limits, 3 locks, 3 times entries; 3 entries, commit
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
        # as a release, and who listens, the fence, the next waiter's entry, the message; no claim
        assert cost() == stated("release with a hand-over to another client") == (3, 10)
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

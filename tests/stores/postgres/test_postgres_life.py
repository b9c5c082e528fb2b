"""PostgreSQL and its clients' lives: killed holders and waiters, cancellation, forks."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
import threading
import time
from typing import Any

import pytest

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold._model import Change
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import PostgresServer
from support.patience import until
from support.steps import TO_THE_END, after_steps
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
    """Each call asks for a value of its own; a misdirected answer would have another call's value."""
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


# --- opening, and closing ----------------------------------------------------------------------------------------


def test_a_close_ends_a_subscription_that_is_being_opened(
    proxied: tuple[FaultProxy, str], postgres_server: PostgresServer, namespace: str
) -> None:
    """The server is slow: else a thread would read messages, on a connection that is never closed."""
    proxy, url = proxied
    held = proxy.hold(where=b"LISTEN")
    with Client.from_url(postgres_server.url, namespace=namespace) as other, other.lock("x"):
        client = Client.from_url(url, namespace=namespace)

        def wait() -> None:
            with pytest.raises(RuntimeError, match="closed"):
                client.lock("x").acquire(timeout=20)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: held.hits, 20.0)
        client.close()
        waiter.join()
        proxy.heal()
        until(lambda: all(thread.name != "leasehold-listen" for thread in threading.enumerate()), 10.0)


def test_a_host_is_reached_at_its_second_address_in_asyncio_too(
    postgres_server: PostgresServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libpq does for blocking clients: the first may be of a node that is down, or IPv6 without a listener."""
    addresses = {"pg.test": ["127.0.0.9", "127.0.0.1"], "gone.test": []}

    async def resolve(host: str, *_: object, **__: object) -> list[Any]:
        if not addresses[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses[host]]

    async def body(url: str) -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        async with AsyncClient.from_url(url, namespace=namespace) as client, client.lock("x"):
            pass

    port = postgres_server.port
    for hosts in ("pg.test", "gone.test,pg.test"):
        asyncio.run(body(f"postgresql://postgres@{','.join(f'{host}:{port}' for host in hosts.split(','))}/postgres"))


def test_dns_that_does_not_answer_is_given_up_at_the_deadline(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver tries for many seconds; a call ends with its time limit, and says what it waited for."""

    async def resolve(*_: object, **__: object) -> list[Any]:
        await asyncio.sleep(5)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def body() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        url = "postgresql://postgres@pg.test/postgres"
        async with AsyncClient.from_url(url, namespace=namespace, response_timeout=0.2) as client:
            with pytest.raises(StoreUnavailable, match="the DNS did not answer in time") as error:
                await client.lock("x").acquire(timeout=0.2)
            assert not error.value.unknown, "nothing was sent"

    asyncio.run(body())

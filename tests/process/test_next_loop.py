"""An asyncio client whose event loop was closed is used, or closed, in the next loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient, Client

KINDS = {
    "redis": ("redis_server", ""),
    "strict": ("redis_server", "?strict=true&longest_lease=60"),
    "sentinel": ("redis_sentinel", ""),
    "cluster": ("redis_cluster", ""),
    "redlock": ("redlock_nodes", ""),
    "postgresql": ("postgres_server", ""),
    "postgresql-session": ("postgres_server", "?mode=session"),
    "mariadb": ("mariadb_url", ""),
    "mariadb-session": ("mariadb_url", "?mode=session"),
    "etcd": ("etcd_server", ""),
    "zookeeper": ("zookeeper_server", "/next-loop"),
}
"""The fixture that starts the servers or has their URL, and what is added to that."""

LEASE = 60.0
"""Seconds; a waiter without messages would learn of its grant at a third of them."""

SOON = LEASE / 6

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}:ResourceWarning") for text in ("unclosed", "loop is closed")]
"""Of what the closed loop has left open."""


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    fixture, options = KINDS[request.param]
    found = request.getfixturevalue(fixture)
    return str(getattr(found, "url", found)) + options


async def hand_over(client: AsyncClient, url: str, namespace: str, name: str) -> None:
    """Let ``client`` wait for a lock that another releases soon."""
    async with AsyncClient.from_url(url, namespace=namespace) as other:
        hold = await other.lock(name, lease=LEASE).acquire()
        assert hold is not None
        waiting = asyncio.ensure_future(client.lock(name, lease=LEASE).acquire(timeout=SOON))
        await asyncio.sleep(0.5)
        await hold.release()
        got = await waiting
        assert got is not None, "its message did not arrive"
        await got.release()


async def use(client: AsyncClient, url: str, namespace: str) -> None:
    """Use a client; in strict mode only by what needs no wait for a new dataset."""
    if "strict" in url:
        await client.ping()
    else:
        await hand_over(client, url, namespace, "a")


def test_a_client_goes_on_in_the_next_loop_and_is_closed_in_another(url: str, namespace: str) -> None:
    client = AsyncClient.from_url(url, namespace=namespace)
    asyncio.run(use(client, url, namespace))
    asyncio.run(use(client, url, namespace))
    asyncio.run(client.close())


def stopped(work: Callable[[], Coroutine[Any, Any, Any]], there: Callable[[], object]) -> object:
    """Run a task in a loop that is closed, without mercy, as soon as ``there`` is true; return what keeps it alive."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(work())]
    while not there():
        loop.run_until_complete(asyncio.sleep(0))
    for each in (*tasks, *asyncio.all_tasks(loop)):
        each._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the point
    loop.close()
    return tasks


def waiter(client: AsyncClient, other: Client) -> object:
    """Let a task of ``client`` wait for what ``other`` holds, in a loop that is closed meanwhile."""

    seen = list[float]()

    def waits() -> bool:
        """Return whether others have seen it in the queue for a while: then it sleeps in the store."""
        info = other.inspect("x")
        if info is not None and info.waiters:
            seen.append(time.monotonic())
        return bool(seen) and seen[-1] - seen[0] > 0.2

    return stopped(lambda: client.lock("x", lease=LEASE).acquire(), waits)


@pytest.mark.parametrize("late", [False, True], ids=["granted nothing", "granted it"])
def test_a_task_that_waits_in_a_closed_loop_keeps_nobody_from_the_lock(url: str, namespace: str, late: bool) -> None:
    if "strict" in url:
        pytest.skip("the same as Redis, after a minute in which it grants nothing")
    client, other = AsyncClient.from_url(url, namespace=namespace), Client.from_url(url, namespace=namespace)
    hold = other.lock("x", lease=LEASE).acquire()
    assert hold is not None
    kept = waiter(client, other)
    if late:
        hold.release()

    async def go_on() -> None:
        await client.lock("y", lease=LEASE).acquire()
        if not late:
            await asyncio.to_thread(hold.release)
        until, tried = time.monotonic() + SOON, None
        while (tried := await client.lock("x", lease=LEASE).acquire(blocking=False)) is None:
            assert time.monotonic() < until, "its own client does not get it"
            await asyncio.sleep(0.01)
        await tried.release()
        got = await asyncio.to_thread(other.lock("x", lease=LEASE).acquire, timeout=SOON)
        assert got is not None, "another client does not get it"
        await asyncio.to_thread(got.release)
        closing = time.monotonic()
        await client.close()
        assert time.monotonic() - closing < 1.5, "the close waits for it"

    asyncio.run(go_on())
    other.close()
    del kept


def test_a_client_goes_on_after_its_loop_was_closed_while_it_subscribed(redis_server: Any, namespace: str) -> None:
    client = AsyncClient.from_url(redis_server.url, namespace=namespace)
    transport = client.store._transport  # type: ignore[attr-defined]

    holder = AsyncClient.from_url(redis_server.url, namespace=namespace)
    asyncio.run(take(holder))

    def subscribes() -> bool:
        """Return whether the request is under way; a task that has not begun would only be warned of."""
        task = transport._subscribing
        return task is not None and inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_SUSPENDED

    stopped(lambda: client.lock("a", lease=LEASE).acquire(), subscribes)
    assert not transport._subscribing.done()

    async def go_on() -> None:
        await hand_over(client, redis_server.url, namespace, "b")
        assert transport.generation(), "it polls"
        await client.close()
        await holder.close()

    asyncio.run(go_on())


async def take(holder: AsyncClient) -> None:
    """Let ``holder`` acquire what the other client waits for."""
    assert await holder.lock("a", lease=LEASE).acquire() is not None

"""An asyncio client whose event loop was closed is used, or closed, in the next loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient

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


def stopped(work: Callable[[], Coroutine[Any, Any, Any]], there: Callable[[], object]) -> None:
    """Run a task in a loop that is closed, without mercy, as soon as ``there`` is true."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(work())]
    while not there():
        loop.run_until_complete(asyncio.sleep(0))
    for each in (*tasks, *asyncio.all_tasks(loop)):
        each._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the point
    loop.close()


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

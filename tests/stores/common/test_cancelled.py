"""asyncio: a cancellation at any moment leaves no locked row, node, lease or unread answer.

In each system and mode an acquire of a free name, a wait, a hand-over and a release are cancelled later and later,
until they end by themselves. Leases are long, so what a lease would clear away in the end is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient, AsyncHold
from support.steps import TO_THE_END, after_steps

URLS: dict[str, tuple[str, str]] = {
    "postgresql": ("postgres_server", ""),
    "postgresql-session": ("postgres_server", "?mode=session"),
    "mariadb": ("mariadb_server", ""),
    "mariadb-session": ("mariadb_server", "?mode=session"),
    "zookeeper": ("zookeeper_server", "/cancelled"),
    "etcd": ("etcd_server", ""),
}
"""The fixture of each system's server, and what follows its URL."""

LEASE = 30.0
SOON = 3.0
"""Seconds within which all must be gone: far less than a lease."""

STEPS = 45
"""More moments than an acquire or a release has."""

OPEN = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND state <> 'idle'",
    "mariadb": "SELECT count(*) FROM information_schema.INNODB_TRX",
}
"""How many transactions are open: each may have rows locked."""


@pytest.fixture(params=list(URLS))
def system(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.startswith("mariadb"):
        request.getfixturevalue("mariadb_url")  # with the tables made
    return name


async def moments(k: int, task: asyncio.Task[Any]) -> bool:
    """Let a task go on for ``k`` turns of the loop, some of which take time, and cancel it; say whether it was."""
    await after_steps(k, task, pauses=(0.0, 0.0, 0.0004))
    return task.cancelled()


async def all_is_well(locks: AsyncClient, others: AsyncClient, k: int) -> None:
    """See that the name is free for others, and that the client's next answers are those to its questions."""
    until = asyncio.get_running_loop().time() + SOON
    while (info := await others.inspect("x")) is not None:
        assert asyncio.get_running_loop().time() < until, (k, info)
        await asyncio.sleep(0.005)
    hold = await others.lock("x", lease=LEASE).acquire(timeout=SOON)
    assert hold is not None, k
    await hold.release()
    async with locks.lock("probe", lease=LEASE, timeout=SOON, meta=f"{k}"):
        seen = await locks.inspect("probe")
        assert seen is not None
        assert [one.meta for one in seen.holders] == [f"{k}"]


async def free(locks: AsyncClient, others: AsyncClient, k: int) -> bool:
    """Cancel an acquire of a free name."""
    task = asyncio.ensure_future(locks.lock("x", lease=LEASE).acquire(timeout=20))
    if cancelled := await moments(k, task):
        return cancelled
    return await given_back(task)


async def queued(locks: AsyncClient, others: AsyncClient, k: int) -> bool:
    """Cancel a wait."""
    async with others.lock("x", lease=LEASE):
        task = asyncio.ensure_future(locks.lock("x", lease=LEASE).acquire(timeout=20))
        assert await moments(min(k, STEPS), task)
    return k < STEPS


async def handed_over(locks: AsyncClient, others: AsyncClient, k: int) -> bool:
    """Cancel a wait as the name is handed over."""
    hold = await others.lock("x", lease=LEASE).acquire(timeout=SOON)
    assert hold is not None
    task = asyncio.ensure_future(locks.lock("x", lease=LEASE).acquire(timeout=20))
    while (info := await others.inspect("x")) is None or not info.waiters:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    release = asyncio.ensure_future(hold.release())
    cancelled = await moments(k, task)
    await release
    return cancelled if cancelled else await given_back(task)


async def released(locks: AsyncClient, others: AsyncClient, k: int) -> bool:
    """Cancel a release; one that did not even begin has done nothing, so it begins."""
    hold = await locks.lock("x", lease=LEASE).acquire(timeout=SOON)
    assert hold is not None
    return await moments(k + 1, asyncio.ensure_future(hold.release()))


async def given_back(task: asyncio.Task[AsyncHold | None]) -> bool:
    hold = task.result()
    assert hold is not None
    assert await hold.release()
    return False


Deed = Callable[[AsyncClient, AsyncClient, int], Coroutine[Any, Any, bool]]


@pytest.mark.parametrize("deed", [free, queued, handed_over, released], ids=lambda deed: deed.__name__)
def test_a_cancelled_acquire_leaves_nothing(
    system: str, deed: Deed, namespace: str, request: pytest.FixtureRequest
) -> None:
    fixture, options = URLS[system]
    server: Any = request.getfixturevalue(fixture)

    async def body() -> None:
        url, outcomes = server.url + options, set[bool]()
        async with (
            AsyncClient.from_url(url, namespace=namespace) as locks,
            AsyncClient.from_url(url, namespace=namespace) as others,
        ):
            await all_is_well(locks, others, -1)
            for k in (*range(STEPS), TO_THE_END):
                outcomes.add(await deed(locks, others, k))
                await all_is_well(locks, others, k)
                if outcomes == {True, False} and k > STEPS // 2:
                    break
        assert outcomes == {True, False}, "some were cancelled, and some ended by themselves"

    asyncio.run(body())
    if count := OPEN.get(system.partition("-")[0]):
        assert not server.query(count)[0][0], "a transaction is left open"

"""What a hand-over costs a client of which many tasks wait for one name, against one of which few do.

The cost is counted in calls of functions, which a busy machine does not change. A hand-over includes the new wait of
the task that had the lock. Some stores read the whole queue of a name, so the cost may grow with it, but slowly: if
each hand-over woke all waiters, and each of them read the queue, it would grow with the square.

With Redlock the tasks join one after the other. Each node has a queue of its own, so tasks that join at once stand in
another order on each node. Votes are then split more often, the more so the busier the machine is.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from leasehold import AsyncClient
from support.stores.crowds import queued

FEW, MANY = 10, 100

TURNS = 120

GROWTH = {
    **{"redis": 1.25, "redlock": 1.25, "sqlite": 1.25},
    **{"etcd": 3.0, "zookeeper": 2.0, "postgresql": 2.5, "mariadb": 2.5},  # they read the queue, or its beginning
}
"""How many times the calls with few waiters those with ten times as many may be."""

FIXTURES = {
    "redis": "redis_server",
    "redlock": "redlock_nodes",
    "etcd": "etcd_server",
    "zookeeper": "zookeeper_server",
    "postgresql": "postgres_server",
}


def url_of(store: str, request: pytest.FixtureRequest) -> str:
    if store == "sqlite":
        return f"sqlite:{request.getfixturevalue('tmp_path')}/locks.db"
    if store == "mariadb":
        return str(request.getfixturevalue("mariadb_url"))
    return str(request.getfixturevalue(FIXTURES[store]).url)


def make(locks: AsyncClient, kind: str) -> Any:
    match kind:
        case "writer":
            return locks.rw_lock("x").writer()
        case "permit":
            return locks.semaphore("x", 2)
        case _:
            return locks.lock("x")


async def calls_of_a_hand_over(url: str, namespace: str, kind: str, waiters: int) -> float:
    calls = done = 0
    all_done = asyncio.Event()

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    async def work(locks: AsyncClient) -> None:
        nonlocal done
        while done < TURNS:
            async with make(locks, kind):
                done += 1
        all_done.set()

    async with (
        AsyncClient.from_url(url, namespace=f"{namespace}-{kind}-{waiters}") as locks,
        asyncio.TaskGroup() as tasks,  # if one of them fails, so does the test, at once and with its error alone
    ):
        first = [await make(locks, kind).acquire() for _ in range(2 if kind == "permit" else 1)]
        for number in range(1, waiters + 1):
            tasks.create_task(work(locks))
            if number == waiters or url.startswith("redlock"):
                await queued(locks, "x", number)
        sys.setprofile(count)
        try:
            for hold in first:
                await hold.release()
            await all_done.wait()
        finally:
            sys.setprofile(None)
    return calls / TURNS


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        pytest.param(store, kind, marks=[] if kind == "lock" or store == "redis" else [pytest.mark.nightly])
        for store in GROWTH
        for kind in ("lock", "permit", "writer")
        if store != "redlock" or kind == "lock"  # it has nothing else
    ],
)
def test_a_hand_over_costs_little_more_with_many_waiters(
    store: str, kind: str, namespace: str, request: pytest.FixtureRequest
) -> None:
    url = url_of(store, request)
    few, many = (asyncio.run(calls_of_a_hand_over(url, namespace, kind, waiters)) for waiters in (FEW, MANY))
    print(f"{few:.0f} calls with {FEW} waiters, {many:.0f} with {MANY}")
    assert many <= few * GROWTH[store]

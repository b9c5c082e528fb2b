"""What the tests of holds share: a lock of each kind, and a client in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from leasehold import AsyncClient
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

LEASE = 9.0


Make = Callable[[AsyncClient], Any]


LOCKS: dict[str, Make] = {
    "lock": lambda client: client.lock("a", lease=LEASE),
    "rlock": lambda client: client.rlock("a", lease=LEASE),
    "reader": lambda client: client.rw_lock("a", lease=LEASE).reader(),
    "upgradeable": lambda client: client.rw_lock("a", lease=LEASE).upgradeable(),
    "writer": lambda client: client.rw_lock("a", lease=LEASE).writer(),
    "semaphore": lambda client: client.semaphore("a", 1, lease=LEASE),
    "multi_lock": lambda client: client.multi_lock(["a"], lease=LEASE),
    "multi_lock of an rlock": lambda client: client.multi_lock([client.rlock("a", lease=LEASE)], lease=LEASE),
    "multi_lock of a writer": lambda client: client.multi_lock([client.rw_lock("a", lease=LEASE).writer()]),
    "election": lambda client: client.election("a", lease=LEASE),
}


TWO: Make = lambda client: client.multi_lock(["a", "b"], lease=LEASE)  # noqa: E731


def simulate(body: Callable[[SimulatedHarness, AsyncClient], Awaitable[None]]) -> None:
    harness = SimulatedHarness()

    async def run(_: Harness) -> None:
        await body(harness, harness.client("memory:"))

    harness.run(run)


async def taken(client: AsyncClient) -> bool:
    return any(view.holders for view in await client.holds())

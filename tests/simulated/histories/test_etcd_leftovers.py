"""What clients of etcd leave behind, in etcd and in their own memory, after many acquires that end in the same way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient, NameInUse
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

LEASE = 2.0
TIMES = 30


def run(body: Callable[[SimulatedHarness, EtcdSystem, AsyncClient], Awaitable[None]]) -> None:
    harness = SimulatedHarness(1)

    async def play(_: Harness) -> None:
        system = EtcdSystem(harness, 1.0, GOOD)
        await body(harness, system, harness.machine("client").client(system.opener))

    with quiet():
        harness.run(play)


def keys(system: EtcdSystem, what: str) -> list[bytes]:
    return [key for key in system.cluster.pairs if f"/{what}/".encode() in key]


def store_of(client: AsyncClient) -> Any:
    return client._engine.store


@pytest.mark.parametrize("renew", [True, False])
def test_a_name_in_other_use_leaves_nothing_behind(renew: bool) -> None:
    """The acquire has an answer, so no request of its can arrive later, and its release needs no tombstone."""

    async def body(harness: SimulatedHarness, system: EtcdSystem, client: AsyncClient) -> None:
        other = harness.machine("other").client(system.opener)
        async with other.semaphore("a", 2, lease=LEASE):
            for _ in range(TIMES):
                with pytest.raises(NameInUse):
                    await client.lock("a", lease=LEASE, renew=renew).acquire(timeout=1.0)
            assert keys(system, "grave") == []
            assert store_of(client)._states == {}
            assert len(store_of(client)._sessions._all) == 1, "one lease serves them all, one after the other"

    run(body)

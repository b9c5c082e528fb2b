"""What clients of etcd leave behind, in etcd and in their own memory, after many acquires that end in the same way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient, NameInUse, StoreUnavailable
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


def test_holds_of_fixed_leases_that_run_out_are_forgotten() -> None:
    async def body(harness: SimulatedHarness, system: EtcdSystem, client: AsyncClient) -> None:
        for number in range(TIMES):
            await client.lock(f"once-{number}", lease=LEASE, renew=False).acquire()
            await harness.sleep(3 * LEASE)
        assert len(store_of(client)._states) <= 2
        assert len(store_of(client)._sessions._all) <= 2

    run(body)


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.parametrize("sent", [True, False], ids=["unanswered", "unsent"])
def test_leases_that_etcd_does_not_grant_are_forgotten(renew: bool, sent: bool) -> None:
    """One without an answer may exist. It ends by itself, and if it is shared, the next acquire asks for the same."""

    async def body(harness: SimulatedHarness, system: EtcdSystem, client: AsyncClient) -> None:
        async with client.lock("a", lease=3 * LEASE):  # another length
            pass
        until = harness.scheduler.time + 3 * TIMES
        for member in system.members:
            setattr(member.link("client"), "replies_held" if sent else "refused", until)
            member.hang_up(arrives=True)
        for _ in range(TIMES):
            with pytest.raises(StoreUnavailable):
                await client.lock("a", lease=LEASE, renew=renew).acquire(timeout=0.1)
        await harness.sleep(until - harness.scheduler.time)
        for _ in range(2):
            async with client.lock("a", lease=LEASE, renew=renew):
                pass
            await harness.sleep(3 * LEASE)
        assert len(store_of(client)._sessions._all) <= 2

    run(body)


def test_leases_of_acquires_without_an_answer_are_forgotten() -> None:
    """They are not kept for the next ticket, since a request that is late may still write under them."""

    async def body(harness: SimulatedHarness, system: EtcdSystem, client: AsyncClient) -> None:
        for _ in range(TIMES):
            hold = await client.lock("a", lease=LEASE, renew=False).acquire()
            assert hold is not None
            for state in store_of(client)._states.values():
                state.unknown = True
            await hold.release()
            await harness.sleep(3 * LEASE)
        assert len(store_of(client)._sessions._all) <= 2

    run(body)

"""What clients of etcd leave behind, in etcd and in their own memory, after many acquires that end in the same way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
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


ROUND_TRIP = 0.05

LEFT = 60
"""Acquires without an answer, whose keys are removed later."""


async def leave_behind(harness: SimulatedHarness, system: EtcdSystem) -> AsyncClient:
    """Return a client with many acquire requests that were carried out, but had no answer until their lease ended."""
    machine = harness.machine("slow")
    client = machine.client(system.opener)
    for member in system.members:
        member.link("slow").latency = (ROUND_TRIP / 2, ROUND_TRIP / 2)
    async with client.lock("warm", lease=LEASE):
        pass
    ends = harness.scheduler.time + 4 * LEASE
    system.cluster.elect(ends)
    for member in system.members:
        member.link("slow").replies_held = ends
        member.hang_up(arrives=True)

    async def acquire(number: int) -> None:
        with suppress(StoreUnavailable):
            await client.lock(f"left-{number}", lease=LEASE).acquire(timeout=1.0)

    for job in [machine.spawn(partial(acquire, number)) for number in range(LEFT)]:
        await job.join(60.0)
    await harness.sleep(ends + LEASE / 4 - harness.scheduler.time)
    states = store_of(client)._states.values()
    assert sum(state.unknown for state in states) > 40, "more than one transaction removes"
    return client


def test_an_acquire_removes_what_many_left_behind_with_one_request() -> None:
    async def body(harness: SimulatedHarness, system: EtcdSystem, _: AsyncClient) -> None:
        client = await leave_behind(harness, system)
        for left in (True, True, False):
            assert bool(store_of(client)._states) is left
            begun = harness.scheduler.time
            async with client.lock("free", lease=LEASE):
                took = harness.scheduler.time - begun
            assert took < 7 * ROUND_TRIP, "the removal, a new lease, the transaction; connections for each"
            await harness.sleep(1.1)

    run(body)


def test_a_hold_is_renewed_while_what_many_left_behind_is_removed() -> None:
    async def body(harness: SimulatedHarness, system: EtcdSystem, _: AsyncClient) -> None:
        client = await leave_behind(harness, system)
        hold = await client.lock("free", lease=LEASE).acquire()
        assert hold is not None
        assert len(store_of(client)._states) > 1, "a renewal has to remove the others"
        await harness.sleep(4 * LEASE)
        assert not hold.lost
        assert len(store_of(client)._states) == 1

    run(body)

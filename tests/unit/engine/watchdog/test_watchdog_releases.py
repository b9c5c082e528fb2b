"""The watchdog repeats releases without an answer, releases what was dropped, and ends with its client."""

from __future__ import annotations

import gc
import logging
import time

import pytest
from engine_cases.watchdogs import LEASE, Switch, simulate

from leasehold import Client, LeaseLost
from leasehold._engine.lease_states import State
from leasehold.client import AsyncClient
from leasehold.events import Event
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Kind
from leasehold_lab.runtimes.harnesses import SimulatedHarness


def test_a_leave_without_an_answer_is_paid_later() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.fault = Fault(Kind.DROP_REQUEST)
        start = harness.now()
        assert await hold.release() is False
        assert harness.now() - start <= 1.1
        other = harness.client(Memory())
        assert await other.inspect("a") is not None
        plan.fault = None
        await harness.sleep(0.6)
        assert await other.inspect("a") is None

    simulate(body)


def test_closing_tries_once_more_to_pay() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.fault = Fault(Kind.REFUSE)
        await hold.release()
        plan.fault = None
        await client.close()
        assert await harness.client(Memory()).inspect("a") is None

    simulate(body)


@pytest.mark.parametrize("fault", [Fault(Kind.DELAY_REQUEST, 0.5), Fault(Kind.DROP_REQUEST, 0.5)], ids=str)
def test_closing_waits_for_a_payment_that_is_under_way(fault: Fault) -> None:
    """The store is closed after it, and not while it asks."""

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.fault = Fault(Kind.REFUSE)
        await hold.release()
        plan.fault = fault
        await harness.sleep(0.1)  # the watchdog asks
        plan.fault = None
        await client.close()
        assert await harness.client(Memory()).inspect("a") is None

    simulate(body)


def test_pending_releases_end_with_the_lease() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.fault = Fault(Kind.DROP_REQUEST)
        await hold.release()
        await harness.sleep(LEASE + 1)
        count = len(plan.times("release"))
        await harness.sleep(10 * LEASE)
        assert len(plan.times("release")) == count

    simulate(body)


def test_closing_ends_the_watchdog_at_once() -> None:
    for _ in range(30):
        client = Client(Memory("close"))
        with client.lock("a", lease=30.0):
            pass
        start = time.monotonic()
        client.close()
        assert time.monotonic() - start < 1.0


def test_closing_releases_what_is_held_and_says_so() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        await client.close()
        assert await harness.client(Memory()).inspect("a") is None
        assert hold._lease.state is State.LOST
        with pytest.raises(LeaseLost, match="client was closed"):
            await hold.release()

    simulate(body)


def test_the_watchdog_releases_a_dropped_hold(caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        await client.lock("a", lease=LEASE).acquire()
        start = harness.now()
        async with client.lock("a", lease=LEASE):
            assert harness.now() - start <= LEASE / 3 + 0.5

    gc.disable()  # what is dropped is noticed without a collection
    try:
        with caplog.at_level(logging.WARNING, "leasehold"):
            simulate(body)
    finally:
        gc.enable()
    assert "never released" in caplog.text


def test_a_lock_keeps_what_was_acquired_through_it() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        lock = client.lock("a", lease=LEASE)
        await lock.acquire()  # as with threading: the lock object is what releases
        await harness.sleep(3 * LEASE)
        assert await lock.locked()
        await lock.release()
        assert not await lock.locked()

    simulate(body)

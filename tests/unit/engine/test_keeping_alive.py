"""A lease is kept while a hold on it is referenced, whichever task or thread acquired; and notices of losses."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from engine_cases.holding import LEASE, LOCKS, Make, simulate, taken

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost, NotHeld, StoreUnavailable
from leasehold._engine.watchdog import watchdog
from leasehold.primitives.locks import lock
from leasehold.stores.memory import Memory
from leasehold_lab.conformance.case_context import LASTING
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.patience import until

every_lock = pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)


@every_lock
def test_a_hold_outlives_the_task_that_acquired_it(make: Make) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        hold: AsyncHold = await harness.spawn(make(client).acquire).result()
        told: list[LeaseLost] = []
        hold.on_lost(told.append)
        await harness.sleep(5 * LEASE)
        hold.raise_if_lost()
        assert not hold.lost
        assert await taken(client)
        assert not told
        assert await hold.release()
        assert not await taken(client)

    simulate(body)


@pytest.mark.parametrize("kind", ["rlock", "writer"])
def test_a_hold_outlives_the_thread_that_acquired_it(kind: str) -> None:
    lease, holds = 1.6, list[Any]()
    with Client(Memory(f"outlived thread {kind}")) as client:
        lock = client.rlock("a", lease=lease) if kind == "rlock" else client.rw_lock("a", lease=lease).writer()
        thread = threading.Thread(target=lambda: holds.append(lock.acquire()))
        thread.start()
        thread.join()
        until = time.monotonic() + 2 * lease
        while time.monotonic() < until:
            assert client.inspect("a") is not None
            holds[0].raise_if_lost()
            time.sleep(lease / 20)
        assert holds[0].release()


@every_lock
def test_a_lease_that_nobody_can_release_is_released_by_the_watchdog(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock object lives on, as a global one does; the task is gone, and nothing refers to the hold."""

    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        lock = make(client)
        await harness.spawn(lambda: acquire_and_forget(lock)).result()
        start = harness.now()
        while await taken(client):
            await harness.sleep(0.05)
            assert harness.now() - start <= LEASE / 3 + 0.5
        assert lock is not None

    gc.disable()
    try:
        with caplog.at_level(logging.WARNING, "leasehold"):
            simulate(body)
    finally:
        gc.enable()
    assert "never released" in caplog.text


@every_lock
def test_a_dropped_hold_is_given_up_though_its_task_lives(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        await acquire_and_forget(make(client))
        start = harness.now()
        while await taken(client):
            await harness.sleep(0.05)
            assert harness.now() - start <= LEASE / 3 + 0.5

    gc.disable()
    try:
        with caplog.at_level(logging.WARNING, "leasehold"):
            simulate(body)
    finally:
        gc.enable()
    assert "never released" in caplog.text


@every_lock
def test_a_dropped_hold_of_the_third_attempt_is_released_without_garbage_collection(make: Make) -> None:
    """The errors before that have tracebacks, and so refer to whatever the frames in them refer to."""
    harness = SimulatedHarness()

    def fails_at_first(call: Call) -> Fault | None:
        return Fault(Kind.DROP_REPLY) if call.number < 2 else None

    async def body(_: Harness) -> None:
        client, looker = harness.client(Faulty(Memory(), fails_at_first)), harness.client(Memory())
        await acquire_and_forget(make(client))
        start = harness.now()
        while await taken(looker):
            await harness.sleep(0.05)
            assert harness.now() - start <= LEASE / 3 + 0.5

    gc.disable()
    try:
        harness.run(body)
    finally:
        gc.enable()


@every_lock
def test_a_block_that_does_not_begin_keeps_nothing_alive(make: Make) -> None:
    """An error that is kept has a traceback, and refers to the frame of its caller, and to what is held there."""

    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        async def tries_in_vain() -> None:
            hold = await make(client).acquire()
            over = await client.lock("other", lease=LEASE).acquire()
            await over.release()
            try:
                async with over:
                    raise AssertionError("it was released")
            except NotHeld:
                del over
            assert hold is not None

        await tries_in_vain()
        start = harness.now()
        while await taken(client):
            await harness.sleep(0.05)
            assert harness.now() - start <= LEASE / 3 + 0.5

    gc.disable()
    try:
        simulate(body)
    finally:
        gc.enable()


@every_lock
def test_a_hold_that_is_dropped_after_a_failed_renewal_is_released_without_garbage_collection(make: Make) -> None:
    harness, refused = SimulatedHarness(), list[str]()

    def refuses_one(call: Call) -> Fault | None:
        return Fault(Kind.REFUSE) if call.method == "renew" and not refused else None

    async def body(_: Harness) -> None:
        client, looker = harness.client(Faulty(Memory(), refuses_one)), harness.client(Memory())
        hold = await make(client).acquire()
        try:
            await hold.renew()
        except StoreUnavailable as error:
            refused.append(str(error))
        del hold
        assert refused
        start = harness.now()
        while await taken(looker):
            await harness.sleep(0.05)
            assert harness.now() - start <= LEASE / 3 + 0.5

    gc.disable()
    try:
        harness.run(body)
    finally:
        gc.enable()


@every_lock
def test_what_is_given_up_is_given_up_as_a_loss(make: Make) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        told: list[LeaseLost] = []
        rival = harness.client("memory:")

        def tell(error: LeaseLost) -> None:
            told.append(error)

        await acquire_and_forget(make(client), tell)
        entered = rival.rw_lock("a").writer() if make is LOCKS["reader"] else make(rival)
        async with entered:
            assert len(told) == 1, "before another client acquires"

    simulate(body)


async def acquire_and_forget(lock: Any, on_lost: Callable[[LeaseLost], None] | None = None) -> None:
    hold = await lock.acquire()
    assert hold is not None
    if on_lost is not None:
        hold.on_lost(on_lost)


@pytest.mark.parametrize("kind", ["lock", "rlock", "writer"])
def test_the_lock_object_keeps_what_a_living_task_acquired_through_it(kind: str) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        lock = LOCKS[kind](client)
        await lock.acquire()
        await harness.sleep(3 * LEASE)
        assert await taken(client)
        await lock.release()
        assert not await taken(client)

    simulate(body)


def test_a_dropped_reentrant_hold_can_be_acquired_again_until_the_watchdog_releases_it() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        await acquire_and_forget(client.rlock("a", lease=LEASE))
        start = harness.now()
        hold = await client.rlock("a", lease=LEASE).acquire()
        assert harness.now() - start < 0.1
        await harness.sleep(3 * LEASE)
        assert hold is not None
        hold.raise_if_lost()
        await hold.release()
        assert await taken(client), "as deep as before: what was dropped counts until it is given up"
        await harness.sleep(LEASE / 3 + 0.5)
        assert not await taken(client)

    simulate(body)


@pytest.mark.parametrize("kind", ["rlock", "reader", "upgradeable", "writer"])
def test_a_dropped_reentrant_hold_can_be_released_through_another_object_of_the_name(kind: str) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        await acquire_and_forget(LOCKS[kind](client))
        assert LOCKS[kind](client).owned()
        await LOCKS[kind](client).release()
        assert not await taken(client)

    simulate(body)


def test_wait_for_gives_a_hold_that_lasts() -> None:
    """On Python 3.11 it runs what it waits for in a task of its own."""

    async def main() -> None:
        async with AsyncClient(Memory("wait_for")) as client:
            for lock in (client.rlock("a", lease=LASTING), client.rw_lock("b", lease=LASTING).reader()):
                hold = await asyncio.wait_for(lock.acquire(), 5)
                assert hold is not None
                async with hold:
                    await asyncio.sleep(1.7 * LASTING)
                    hold.raise_if_lost()
                    assert [info.name for info in await client.holds()] == [lock.name]

    asyncio.run(main())


# --- a client that is dropped without a close ---------------------------------------------------------------------


@pytest.mark.parametrize("released", [True, False], ids=["released", "hold dropped"])
def test_a_client_that_is_dropped_with_all_that_it_made_leaves_nothing_behind(
    released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fork and the end of the interpreter must find is not kept longer than its watchdog has work."""
    monkeypatch.setattr(watchdog, "LINGER", 0.1)
    client = Client(Memory(f"dropped without a close {released}"))
    engine, store = weakref.ref(client._core._engine), weakref.ref(client.store)
    hold = client.lock("a", lease=0.6).acquire()
    assert hold is not None
    if released:
        assert hold.release()
    del client, hold
    gc.collect()
    assert engine() is not None, "its watchdog has it"
    until(lambda: gc.collect() is not None and engine() is None and store() is None)


# --- a thread that stalls between the grant and its hold ----------------------------------------------------------


def test_a_thread_that_stalls_before_it_receives_the_grant_gets_a_valid_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = lock.acquire

    def slowly(*args: Any) -> Any:
        async def run() -> Any:
            got = await acquire(*args)
            time.sleep(1.6)  # noqa: ASYNC251 as a thread does that is given no turn
            return got

        return run()

    monkeypatch.setattr(lock, "acquire", slowly)
    with Client(Memory("stalled before its hold")) as client:
        hold = client.lock("a", lease=1.5).acquire()
        assert hold is not None
        hold.raise_if_lost()
        assert hold.release()


@pytest.mark.parametrize("kind", ["lock", "multi_lock"])
def test_max_hold_caps_the_renewals_of_the_holder_too(kind: str) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        make = client.lock if kind == "lock" else lambda name, **options: client.multi_lock([name], **options)
        hold = await make("a", lease=LEASE, max_hold=3 * LEASE).acquire()
        assert hold is not None
        start, lost = harness.now(), list[float]()
        hold.on_lost(lambda error: lost.append(harness.now() - start))
        await harness.sleep(3 * LEASE - 0.1)
        await hold.renew()
        await harness.sleep(0.1)
        now, left = harness.now(), hold.remaining
        with pytest.raises(RuntimeError, match=r"'a' is renewed no more: .* its max_hold .* within 8\.\d s"):
            await hold.renew()
        assert harness.now() == now, "nothing was sent"
        assert hold.held
        assert hold.remaining == left
        await harness.sleep(LEASE)
        assert lost == [pytest.approx(4 * LEASE - 0.1, abs=0.1)]
        with pytest.raises(LeaseLost):
            await hold.renew()

    simulate(body)

"""A lease is kept while somebody can reach a hold on it, whichever task or thread acquired; and who is notified."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost, NotHeld
from leasehold._engine.lease_states import State
from leasehold.primitives.locks import mutex
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
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

every_lock = pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)


class Leaves:
    """A plan that fails the next so many requests to leave."""

    def __init__(self) -> None:
        self.fault, self.left = Fault(Kind.DROP_REQUEST), 0

    def __call__(self, call: Call) -> Fault | None:
        if call.method not in ("release", "release_many") or self.left == 0:
            return None
        self.left -= 1
        return self.fault


def simulate(body: Callable[[SimulatedHarness, AsyncClient], Awaitable[None]]) -> None:
    harness = SimulatedHarness()

    async def run(_: Harness) -> None:
        await body(harness, harness.client("memory:"))

    harness.run(run)


async def taken(client: AsyncClient) -> bool:
    return any(view.holders for view in await client.holds())


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
    lease, holds = 0.6, list[Any]()
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
    """The lock object lives on, as a global one does; the task is gone, and nobody has the hold."""

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
def test_what_is_given_up_is_given_up_as_a_loss(make: Make) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        told: list[LeaseLost] = []
        rival = harness.client("memory:")

        def tell(error: LeaseLost) -> None:
            told.append(error)

        await acquire_and_forget(make(client), tell)
        entered = rival.rw_lock("a").writer() if make is LOCKS["reader"] else make(rival)
        async with entered:
            assert len(told) == 1, "before anybody else is let in"

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
            for lock in (client.rlock("a", lease=0.6), client.rw_lock("b", lease=0.6).reader()):
                hold = await asyncio.wait_for(lock.acquire(), 5)
                assert hold is not None
                async with hold:
                    await asyncio.sleep(1.0)
                    hold.raise_if_lost()
                    assert [info.name for info in await client.holds()] == [lock.name]

    asyncio.run(main())


# --- a thread that stalls between the grant and its hold ----------------------------------------------------------


def test_a_thread_that_stalls_before_it_receives_the_grant_gets_a_valid_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = mutex.acquire

    def slowly(*args: Any) -> Any:
        async def run() -> Any:
            got = await acquire(*args)
            time.sleep(1.6)  # noqa: ASYNC251 as a thread does that is given no turn
            return got

        return run()

    monkeypatch.setattr(mutex, "acquire", slowly)
    with Client(Memory("stalled before its hold")) as client:
        hold = client.lock("a", lease=1.5).acquire()
        assert hold is not None
        hold.raise_if_lost()
        assert hold.release()


# --- a client that is closed while its locks are in use -------------------------------------------------------------


def test_closing_the_client_ends_the_blocks_of_other_tasks_before_anybody_else_acquires() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        events: list[str] = []
        entered = harness.event()

        async def work() -> None:
            try:
                async with client.rlock("a", lease=LEASE) as hold:
                    hold.on_lost(lambda error: events.append("told"))
                    entered.set()
                    try:
                        await harness.sleep(100 * LEASE)
                    finally:
                        await harness.sleep(0.2)  # it tidies up
                        events.append("out")
            except LeaseLost as error:
                events.append("closed" if "closed" in str(error) else "lost")

        async def rival() -> None:
            async with harness.client("memory:").lock("a", lease=LEASE):
                events.append("rival")

        job = harness.spawn(work)
        await entered.wait(None)
        waiting = harness.spawn(rival)
        await harness.sleep(0.1)
        await client.close()
        await waiting.result()
        await job.result()
        assert events[0] == "told"
        assert events.index("out") < events.index("rival")
        assert "closed" in events

    simulate(body)


def test_closing_does_not_wait_longer_than_its_time_for_a_block_that_does_not_end() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        entered = harness.event()

        async def work() -> None:
            with pytest.raises(LeaseLost):  # noqa: PT012
                async with client.lock("a", lease=LEASE):
                    entered.set()
                    until = harness.now() + 30.0
                    while harness.now() < until:
                        try:
                            await harness.sleep(until - harness.now())
                        except asyncio.CancelledError:
                            pass

        job = harness.spawn(work)
        await entered.wait(None)
        start = harness.now()
        await client.close()
        assert harness.now() - start <= 2.5
        looker = harness.client("memory:")
        assert not await taken(looker), "it was released all the same"
        await job.result()

    simulate(body)


def test_a_task_may_close_its_client_inside_its_own_block() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        start = harness.now()
        with pytest.raises(LeaseLost, match="closed"):  # noqa: PT012
            async with client.lock("a", lease=LEASE) as hold:
                await client.close()
                assert hold.lost
                with pytest.raises(LeaseLost, match="closed"):
                    hold.raise_if_lost()
        assert harness.now() - start < 1.0
        assert not await taken(harness.client("memory:"))

    simulate(body)


@pytest.mark.parametrize("make", [LOCKS["lock"], TWO], ids=["one", "several"])
@pytest.mark.parametrize("fault", [Fault(Kind.DELAY_REQUEST, 0.5), Fault(Kind.DROP_REQUEST, 0.5)], ids=str)
def test_closing_waits_for_a_release_that_is_under_way(make: Make, fault: Fault) -> None:
    """The process may end right after the close, and nobody would send the release again."""

    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        plan = Leaves()
        closing = harness.client(Faulty(Memory(), plan))
        hold = await make(closing).acquire()
        plan.fault, plan.left = fault, 1
        job = harness.spawn(hold.release)
        await harness.sleep(0.01)  # it has been sent
        await closing.close()
        assert not await taken(client)
        await job.result()

    simulate(body)


def test_closing_does_not_wait_longer_than_its_time_for_a_release() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        plan = Leaves()
        closing = harness.client(Faulty(Memory(), plan))
        hold = await closing.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.left = 1000
        job = harness.spawn(hold.release)
        await harness.sleep(0.01)
        start = harness.now()
        await closing.close()
        assert harness.now() - start <= 2.5
        assert not await job.result()

    simulate(body)


def test_whoever_is_called_by_its_own_release_may_close_the_client() -> None:
    client, other = Client(Memory("closes in release")), Client(Memory("closes in release"))
    hold = client.lock("a", renew=False, lease=30.0).acquire()
    assert hold is not None
    hold.on_lost(lambda error: client.close())
    other.force_release("a", hold.token)
    start = time.monotonic()
    with pytest.raises(LeaseLost):
        hold.release()
    assert time.monotonic() - start < 1.0
    other.close()


def test_a_blocking_holder_is_told_of_the_close_by_every_call() -> None:
    told: list[LeaseLost] = []
    client, other = Client(Memory("closed under use")), Client(Memory("closed under use"))
    hold = client.lock("a").acquire()
    assert hold is not None
    hold.on_lost(told.append)
    threading.Thread(target=client.close).start()
    with other.lock("a"):
        assert hold.lost
        with pytest.raises(LeaseLost, match="closed"):
            hold.raise_if_lost()
        assert len(told) == 1
    assert hold._core._lease.state is State.LOST
    other.close()


def test_a_slow_callback_delays_the_close_for_a_bounded_time() -> None:
    go_on = threading.Event()
    client, other = Client(Memory("slow callback")), Client(Memory("slow callback"))
    hold = client.lock("a").acquire()
    assert hold is not None
    hold.on_lost(lambda error: go_on.wait(20))  # type: ignore[arg-type,return-value]
    start = time.monotonic()
    client.close()
    assert time.monotonic() - start < 10
    assert other.lock("a").acquire(timeout=0) is not None, "released all the same"
    go_on.set()
    other.close()


def test_a_plain_release_is_no_loss() -> None:
    with Client(Memory("plain release")) as client:
        hold = client.rlock("a").acquire()
        assert hold is not None
        told: list[LeaseLost] = []
        hold.on_lost(told.append)
        hold.release()
        assert not hold.lost
        with pytest.raises(NotHeld):
            hold.raise_if_lost()
    assert not told

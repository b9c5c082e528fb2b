"""A client that is closed while its locks are acquired, held or released."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Thread

import pytest
from engine_cases.holding import LEASE, LOCKS, TWO, Make, simulate, taken
from engine_cases.late import space

from leasehold import AsyncClient, Client, LeaseLost, NotHeld
from leasehold._engine.lease_states import State
from leasehold.stores import registry
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, nth
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

BUSY = 0.3  # seconds of scheduling noise on a busy machine


class Leaves:
    """A plan that fails the next so many requests to leave."""

    def __init__(self) -> None:
        self.fault, self.left = Fault(Kind.DROP_REQUEST), 0

    def __call__(self, call: Call) -> Fault | None:
        if call.method not in ("release", "release_many") or self.left == 0:
            return None
        self.left -= 1
        return self.fault


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_closing_a_client_ends_its_waiters_with_a_clear_error(harness: Harness, where: str, tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        store = space() if where == "memory" else registry.opener(f"sqlite:{tmp_path}/locks.db")
        other, client = harness.client(store), harness.client(store)
        async with other.lock("a"):
            jobs = [harness.spawn(client.lock("a").acquire) for _ in range(3)]
            await harness.sleep(0.1)
            start = harness.now()
            await client.close()
            for job in jobs:
                with pytest.raises(RuntimeError, match="client is closed"):
                    await job.result()
            assert harness.now() - start < 2 * BUSY
            info = await other.inspect("a")
            assert info is not None
            assert info.waiters == ()
        assert await other.inspect("a") is None

    if where == "sqlite" and harness.name == "simulated":
        pytest.skip("a file does not live in virtual time")
    harness.run(body)


def test_closing_while_a_claim_is_under_way_leaves_nothing(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client = harness.client(Faulty(memory, nth(0, Fault(Kind.DELAY_REQUEST, 1.5), method="try_acquire")))
        job = harness.spawn(client.lock("a", lease=1.0).acquire)
        await harness.sleep(0.1)
        start = harness.now()
        await client.close()
        assert harness.now() - start > 0.15, "the store is closed when the claim has arrived, and was released again"
        with pytest.raises(RuntimeError, match="client is closed"):
            await job.result()
        assert await harness.client(memory).inspect("a") is None

    harness.run(body)


def test_a_closed_client_refuses(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        lock, rlock = client.lock("a"), client.rlock("b")
        await client.close()
        await client.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            lock.acquire,
            rlock.acquire,
            lock.locked,
            client.holds,
            lambda: client.inspect("a"),
            lambda: client.force_release("a", 1),
            client.diagnose,
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="client is closed"):
                await call()

    harness.run(body)


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
    """The process may end right after the close, and the release would not be sent again."""

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
    Thread(target=client.close).start()
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

"""Cancel at every suspension, one by one: afterwards it is held and returned, or nothing is left on the store."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from sweeping.operations import OPERATIONS, check_leftovers
from sweeping.suspensions import HOLD_UP, LEASE, Slow, nothing_is_left, outcome

from leasehold import LeaseholdError
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness, SimulatedHarness
from leasehold_lab.runtimes.virtual import Scheduler, Task

TWO_CLAIMS = {
    *("in_turn", "upgrade", "step_down", "permits"),
    *("meeting", "several", "several_kinds", "several_in_vain", "lead"),
}


def sweep(harness: Harness, opener: Any, memory: Any, name: str, current: Callable[[], Any]) -> int:
    async def body(harness: Harness) -> int:
        looker = harness.client(memory)
        counted = 0
        for at in range(1000):
            client = harness.client(opener)
            reached = await outcome(harness, client, name, at, current)
            await nothing_is_left(client, looker)
            counted = await check_leftovers(looker, name, counted)
            await client.close()
            if not reached:
                return at
        raise AssertionError("it never ends")

    return harness.run(body)


@pytest.mark.parametrize("name", OPERATIONS)
def test_cancel_at_every_suspension_under_asyncio(name: str) -> None:
    memory = Memory(f"cancel-{name}")
    points = sweep(AsyncioHarness(), Slow(memory), memory, name, asyncio.current_task)
    assert points >= HOLD_UP


@pytest.mark.parametrize("latency", [0.0, 0.05])
@pytest.mark.parametrize("name", OPERATIONS)
def test_cancel_at_every_suspension_in_virtual_time(name: str, latency: float) -> None:
    """A request that travels cannot be called back: its leave must not overtake it."""
    if name in TWO_CLAIMS and (latency or name in ("meeting", "several", "lead")):
        pytest.skip("cancelled as its second claim is sent, the leave starts at the same instant: either may be first")
    harness = SimulatedHarness(1, latency=(latency, latency))
    memory = Faulty(Memory(), lambda call: None)
    assert sweep(harness, memory, memory, name, lambda: scheduler(harness).current) >= 1


def scheduler(harness: SimulatedHarness) -> Scheduler:
    return harness.scheduler


@pytest.mark.parametrize("turns", range(0, 80, 2))
def test_cancelled_while_it_waits_for_one_of_several(turns: int) -> None:
    async def body(harness: Harness) -> None:
        memory = Memory("in the way")
        client, looker = harness.client(Slow(memory)), harness.client(memory)
        async with looker.lock("b"):
            task = asyncio.ensure_future(client.multi_lock(["a", "b", "c"], lease=LEASE).acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            info = await looker.inspect("b")
            assert info is not None
            assert info.waiters == ()
            assert [info.name for info in await looker.holds()] == ["b"]
        await nothing_is_left(client, looker)

    AsyncioHarness().run(body)


@pytest.mark.parametrize("second", range(0, 12))
def test_cancelled_twice_the_leave_still_arrives(second: int) -> None:
    async def body(harness: Harness) -> None:
        memory = Memory("twice")
        client, looker = harness.client(Slow(memory)), harness.client(memory)
        async with looker.lock("a"):
            task = asyncio.ensure_future(client.lock("a", lease=LEASE).acquire())
            await asyncio.sleep(0.02)
            task.cancel()
            for _ in range(second):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            info = await looker.inspect("a")
            assert info is not None
            assert info.waiters == ()

    AsyncioHarness().run(body)


@pytest.mark.parametrize("second", range(0, 12))
def test_cancelled_twice_in_its_first_try_the_leave_still_arrives(second: int) -> None:
    async def body(harness: Harness) -> None:
        for first in range(1, 12):
            memory = Memory("twice")
            client, looker = harness.client(Slow(memory)), harness.client(memory)
            task = asyncio.ensure_future(client.lock("a", lease=LEASE).acquire())
            for _ in range(first):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(second):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                hold = await task
                assert hold is not None
                await hold.release()
            assert await looker.inspect("a") is None

    AsyncioHarness().run(body)


@pytest.mark.parametrize("steps", range(0, 40))
def test_a_waiter_cancelled_as_the_name_is_handed_to_it_hands_it_on(steps: int) -> None:
    async def body(harness: Harness) -> None:
        memory = Memory("handed")
        client, looker = harness.client(Slow(memory)), harness.client(memory)
        first = await looker.lock("a").acquire()
        assert first is not None
        second = asyncio.ensure_future(client.lock("a", lease=LEASE).acquire())
        await asyncio.sleep(0.02)
        third = asyncio.ensure_future(client.lock("a", lease=LEASE).acquire())
        await asyncio.sleep(0.02)
        await first.release()
        for _ in range(steps):
            await asyncio.sleep(0)
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            held = await second
            assert held is not None
            await held.release()
        hold = await asyncio.wait_for(third, 1.0)
        assert hold is not None
        await hold.release()
        assert await looker.inspect("a") is None

    AsyncioHarness().run(body)


@pytest.mark.parametrize("steps", range(0, 30))
def test_cancelling_close_still_closes(steps: int) -> None:
    async def body(harness: Harness) -> None:
        memory = Memory("closing")
        client, looker = harness.client(Slow(memory)), harness.client(memory)
        holds = [await client.lock(name, lease=LEASE).acquire() for name in "ab"]
        assert all(holds)
        task = asyncio.ensure_future(client.close())
        for _ in range(steps + 1):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await looker.holds() == []

    AsyncioHarness().run(body)


def test_the_sweep_can_see_a_task_that_runs() -> None:
    harness = SimulatedHarness()

    async def body(_: Harness) -> Task[Any] | None:
        return harness.scheduler.current

    assert harness.run(body) is not None


def test_a_request_that_was_overtaken_by_its_leave_ends_with_its_lease() -> None:
    """What cannot be undone, a claim that arrives after its leave, blocks others for one lease and no longer."""
    plan_of = {"try_acquire": Fault(Kind.LATE, 1.0)}

    async def body(harness: Harness) -> None:
        client = harness.client(Faulty(Memory(), lambda call: plan_of.get(call.method)), response_timeout=0.1)
        with pytest.raises(LeaseholdError):
            await client.lock("a", lease=5.0).acquire()
        await harness.sleep(1.5)
        looker = harness.client(Memory())
        start = harness.now()
        async with looker.lock("a"):
            assert harness.now() - start <= 5.0

    SimulatedHarness().run(body)

"""Cancel at every suspension, one by one: afterwards it is held and returned, or nothing is left on the store."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from operations import (
    OPERATIONS,
    Operation,
    acquire,
    acquire_and_release,
    attempt,
    latch,
    lonely,
    meeting,
    nobody_is_there,
    release_by_the_lock,
)

from leasehold import AsyncClient, AsyncHold, LeaseholdError
from leasehold._engine.lease_states import ENDED, State
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import METHODS, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness, SimulatedHarness
from leasehold_lab.runtimes.virtual import Scheduler, Task

LEASE = 20.0
HOLD_UP = 8  # suspensions of each call of the store, before and after it has its effect


class Slow:
    """Opens a memory store each of whose calls suspends several times before and after its effect."""

    def __init__(self, opener: Memory, hold_up: int = HOLD_UP) -> None:
        self.opener = opener
        self.hold_up = hold_up

    def open(self, runtime: Any, namespace: str) -> Any:
        return SlowStore(self.opener.open(runtime, namespace), self.hold_up)


class SlowStore:
    def __init__(self, inner: Any, hold_up: int) -> None:
        self._inner = inner
        self._hold_up = hold_up

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in (*METHODS, "wait", "wait_for_cell"):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            for _ in range(self._hold_up // 2):
                await asyncio.sleep(0)
            answer = await value(*args, **options)
            for _ in range(self._hold_up // 2):
                await asyncio.sleep(0)
            return answer

        return call


TWO_CLAIMS = {"upgrade", "step_down", "permits", "meeting", "several", "several_kinds", "several_in_vain", "lead"}


class Cancelling:
    """Steps a coroutine, and throws a cancellation in at its k-th suspension, as a task would."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, cancel: Callable[[], object]) -> None:
        self.work, self.at, self.cancel = work, at, cancel
        self.met = 0

    def __await__(self) -> Any:
        step, value = self.work.send, None
        while True:
            try:
                wanted = step(value)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
            self.met += 1
            if self.met == self.at + 1:
                self.cancel()
            try:
                value, step = (yield wanted), self.work.send
            except BaseException as error:
                value, step = error, self.work.throw  # type: ignore[assignment]


async def outcome(harness: Harness, client: AsyncClient, name: str, at: int, current: Callable[[], Any]) -> bool:
    """Run an operation in a job of its own, cancelled at suspension ``at``; return whether it had that many."""
    met: list[Cancelling] = []

    async def work() -> AsyncHold | None:
        task = current()
        met.append(Cancelling(OPERATIONS[name](harness, client, LEASE), at, task.cancel))  # type: ignore[arg-type]
        hold = await met[0]
        if hold is not None:
            hold.raise_if_lost()
            await hold.release()  # held and returned: it is whole
        return None

    job = harness.spawn(work)
    await job.join()
    error = job.exception()
    assert error is None or isinstance(error, asyncio.CancelledError), error
    reached = met[0].met > at
    assert reached == isinstance(error, asyncio.CancelledError), "a cancellation is never swallowed"
    return reached


async def nothing_is_left(client: AsyncClient, looker: AsyncClient) -> None:
    assert await looker.holds() == []
    assert client._engine.watchdog.leases() == []


def sweep(harness: Harness, opener: Any, memory: Any, name: str, current: Callable[[], Any]) -> int:
    async def body(harness: Harness) -> int:
        looker = harness.client(memory)
        counted = 0
        for at in range(1000):
            client = harness.client(opener)
            reached = await outcome(harness, client, name, at, current)
            await nothing_is_left(client, looker)
            counted = await nobody_is_there(looker, name, counted)
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


def test_a_coroutine_that_is_closed_without_its_loop_says_nothing() -> None:
    """A loop that is dropped throws GeneratorExit into its tasks: nothing may be awaited then."""

    client = AsyncClient(Memory("closed coroutine"))

    async def body() -> Coroutine[Any, Any, Any]:
        await client.lock("a").acquire()
        work = client.lock("a").acquire()
        assert work.send(None) is not None
        return work

    work = asyncio.run(body())
    work.close()  # an await in there would be a RuntimeError: coroutine ignored GeneratorExit
    assert all(lease.state is not State.QUEUED for lease in client._engine.watchdog.leases()), "it is renewed no more"


class Dropping:
    """Steps a coroutine, and closes it at its k-th suspension, as a loop that is dropped does with its tasks."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self.work, self.at = work, at
        self.met = 0

    def __await__(self) -> Any:
        while True:
            try:
                wanted = self.work.send(None)
            except StopIteration as stop:
                return stop.value
            self.met += 1
            if self.met > self.at:
                if wanted is not None:
                    wanted._asyncio_future_blocking = False
                self.work.close()  # an await in there would be a RuntimeError: coroutine ignored GeneratorExit
                return None
            yield wanted


async def several_without_a_block(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    readers = client.rw_lock("0", lease=lease).reader()
    hold = await client.multi_lock([readers, "a", "b", "c"], lease=lease).acquire()
    assert hold is not None
    await hold.renew()
    return hold


async def meeting_without_a_block(harness: Harness, client: AsyncClient, lease: float) -> None:
    barrier = client.barrier("a", 1, lease=lease)
    await barrier.wait()
    await barrier.enter()
    await barrier.leave()


async def in_vain(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    hold = await client.lock("a", lease=lease).acquire()
    assert await client.lock("a", lease=lease).acquire(timeout=0.02) is None
    return hold


DROPPED = (
    *(acquire, acquire_and_release, release_by_the_lock, attempt, latch, lonely, meeting, in_vain),
    *(several_without_a_block, meeting_without_a_block),
)
"""What is dropped inside a block of a lock, that block's end awaits its release, as a generator's may."""


@pytest.mark.parametrize("operation", DROPPED, ids=lambda operation: operation.__name__)
def test_dropped_with_its_loop_at_every_suspension_it_says_nothing_and_is_renewed_no_more(operation: Operation) -> None:
    async def body(harness: Harness) -> int:
        for at in range(1000):
            client = harness.client(Slow(Memory(f"dropped-{operation}-{at}")))
            work = Dropping(operation(harness, client, LEASE), at)  # type: ignore[arg-type]
            hold = await work
            if work.met <= at:
                await (hold.release() if hold is not None else asyncio.sleep(0))
                return at
            await asyncio.sleep(0.01)  # what was shielded goes on
            for lease in client._engine.watchdog.leases():
                assert not lease.is_reachable() or lease.state in ENDED
            await client.close()
        raise AssertionError("it never ends")

    assert AsyncioHarness().run(body) >= HOLD_UP


def test_dropped_while_it_gives_up_it_says_nothing() -> None:
    class Dropped:
        def __init__(self, client: AsyncClient) -> None:
            self.client = client
            self.leaving = False

        def __await__(self) -> Any:
            work = self.client.lock("a").acquire(timeout=0.02)
            while not self.leaving:
                yield work.send(None)
                attempts = list(self.client._engine.attempts)
                self.leaving = any(one._lease.state is State.RELEASED for one in attempts)  # type: ignore[union-attr]
            work.close()

    async def body(harness: Harness) -> None:
        memory = Memory("gives up")
        async with harness.client(memory).lock("a"):
            dropped = Dropped(harness.client(Slow(memory)))
            await dropped
            assert dropped.leaving

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

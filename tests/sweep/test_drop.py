"""An event loop is dropped while an operation is suspended: the operation awaits nothing, and nothing is renewed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from sweeping.operations import (
    Operation,
    acquire,
    acquire_and_release,
    attempt,
    latch,
    lonely,
    meeting,
    release_by_the_lock,
)
from sweeping.suspensions import HOLD_UP, LEASE, Slow

from leasehold import AsyncClient, AsyncHold
from leasehold._engine.lease import Lease
from leasehold._engine.lease_states import ENDED, State
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness


def test_closing_a_coroutine_after_its_loop_has_ended_awaits_nothing() -> None:
    """A dropped event loop raises GeneratorExit in its tasks. They must not await anything then."""

    client = AsyncClient(Memory("closed coroutine"))

    async def body() -> Coroutine[Any, Any, Any]:
        await client.lock("a").acquire()
        work = client.lock("a").acquire()
        assert work.send(None) is not None
        return work

    work = asyncio.run(body())
    work.close()  # raises RuntimeError if the coroutine awaits: "coroutine ignored GeneratorExit"
    assert all(lease.state is not State.QUEUED for lease in client._engine.watchdog.leases()), (
        "the queue entry is still renewed"
    )


class Dropping:
    """Runs a coroutine, and closes it at its k-th suspension, as happens to the tasks of a dropped event loop."""

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
                self.work.close()  # raises RuntimeError if the coroutine awaits
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
"""None of these uses a lock as a block: the end of a block awaits its release, even when it is dropped."""


@pytest.mark.parametrize("operation", DROPPED, ids=lambda operation: operation.__name__)
def test_an_operation_dropped_at_any_suspension_awaits_nothing_and_is_not_renewed(operation: Operation) -> None:
    async def body(harness: Harness) -> int:
        for at in range(1000):
            client = harness.client(Slow(Memory(f"dropped-{operation}-{at}")))
            work = Dropping(operation(harness, client, LEASE), at)  # type: ignore[arg-type]
            hold = await work
            if work.met <= at:
                await (hold.release() if hold is not None else asyncio.sleep(0))
                return at
            await asyncio.sleep(0.01)  # shielded requests continue
            for lease in client._engine.watchdog.leases():
                assert not lease.is_reachable() or lease.state in ENDED
            await client.close()
        raise AssertionError("it never ends")

    assert AsyncioHarness().run(body) >= HOLD_UP


def test_an_acquire_dropped_at_its_timeout_awaits_nothing() -> None:
    class Dropped:
        def __init__(self, client: AsyncClient) -> None:
            self.client = client
            self.leaving = False

        def __await__(self) -> Any:
            work = self.client.lock("a").acquire(timeout=0.02)
            while not self.leaving:
                yield work.send(None)
                attempts = list(self.client._engine.attempts)
                assert all(isinstance(one, Lease) for one in attempts)  # each is in the fast path
                self.leaving = any(lease.state is State.RELEASED for lease in attempts)
            work.close()

    async def body(harness: Harness) -> None:
        memory = Memory("gives up")
        async with harness.client(memory).lock("a"):
            dropped = Dropped(harness.client(Slow(memory)))
            await dropped
            assert dropped.leaving

    AsyncioHarness().run(body)

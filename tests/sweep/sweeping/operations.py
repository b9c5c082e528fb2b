"""Operations of all primitives. Each holds something in a store for a while, or stores something.

The sweeps cancel each operation, inject faults, or kill its client, at every step. Without that, each operation ends by
itself. It leaves only the hold that it returns, and what `check_leftovers` allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from leasehold import AcquireTimeout, AsyncClient, AsyncHold
from leasehold_lab.runtimes.harnesses import Harness

Operation = Callable[[Harness, AsyncClient, float], Awaitable[AsyncHold | None]]
"""An operation of a client; the number is the lease in seconds."""


async def acquire(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    return await client.lock("a", lease=lease).acquire()


async def acquire_and_release(harness: Harness, client: AsyncClient, lease: float) -> None:
    hold = await client.lock("a", lease=lease).acquire()
    assert hold is not None
    await hold.release()


async def in_turn(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    async with client.lock("a", fair=True, lease=lease):
        await harness.sleep(0.001)
    return await client.lock("a", fair=True, lease=lease).acquire()


async def release_by_the_lock(harness: Harness, client: AsyncClient, lease: float) -> None:
    lock = client.rlock("a", lease=lease)
    await lock.acquire()
    await lock.acquire()
    await lock.release()
    await lock.release()


async def block(harness: Harness, client: AsyncClient, lease: float) -> None:
    async with client.lock("a", lease=lease):
        await harness.sleep(0.001)


async def nested(harness: Harness, client: AsyncClient, lease: float) -> None:
    async with client.rlock("a", lease=lease), client.rlock("a", lease=lease):
        await harness.sleep(0.001)


async def block_with_extend(harness: Harness, client: AsyncClient, lease: float) -> None:
    async with client.lock("a", lease=lease) as hold:
        await hold.renew()


def in_order(client: AsyncClient) -> bool:
    """Return whether readers, writers and permits of the client's store can be served in order of arrival."""
    core = getattr(client, "_core", client)  # a blocking client has one
    return core._engine.store.capabilities.fair_shared


async def upgrade(harness: Harness, client: AsyncClient, lease: float) -> None:
    async with client.rw_lock("a", lease=lease).upgradeable() as hold:
        writing = await hold.upgrade()
        assert writing is not None
        async with writing:
            await harness.sleep(0.001)


async def step_down(harness: Harness, client: AsyncClient, lease: float) -> None:
    lock = client.rw_lock("a", lease=lease, fair=in_order(client))
    async with lock.writer() as hold, lock.reader():
        await hold.release()
        await harness.sleep(0.001)


async def permits(harness: Harness, client: AsyncClient, lease: float) -> None:
    semaphore = client.semaphore("a", 3, lease=lease, fair=in_order(client))
    async with semaphore, semaphore.permits(2):
        await harness.sleep(0.001)


async def several(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    async with client.multi_lock(["0", "a", "b"], lease=lease) as hold:
        await hold.renew()
    return await client.multi_lock(["0", "a", "b"], lease=lease).acquire()


async def several_kinds(harness: Harness, client: AsyncClient, lease: float) -> None:
    fair = in_order(client)
    readers, permits = (
        client.rw_lock("0", fair=fair, lease=lease).reader(),
        client.semaphore("b", 3, fair=fair, lease=lease),
    )
    async with client.multi_lock([permits, "a", readers, client.rlock("c", lease=lease)], lease=lease):
        await harness.sleep(0.001)


async def several_in_vain(harness: Harness, client: AsyncClient, lease: float) -> None:
    async with client.lock("b", lease=lease):
        assert await client.multi_lock(["a", "b", "c"], lease=lease).acquire(timeout=0) is None


async def lead(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    election = client.election("a", "one", lease=lease)
    async with election as leadership:
        await leadership.proclaim("another")
    await election.run(lambda leadership: harness.sleep(0.001))
    return await election.campaign()


async def latch(harness: Harness, client: AsyncClient, lease: float) -> None:
    latch = client.latch("a", 1000)
    await latch.count_down()
    await latch.wait(timeout=0.01)


async def meeting(harness: Harness, client: AsyncClient, lease: float) -> None:
    barrier = client.barrier("a", 1, lease=lease, drop_dead=True)
    await barrier.wait()
    async with barrier:
        await harness.sleep(0.001)


async def lonely(harness: Harness, client: AsyncClient, lease: float) -> None:
    """Wait at a barrier to which no other member comes, until the timeout."""
    with contextlib.suppress(AcquireTimeout):
        await client.barrier("a", 2, lease=lease, drop_dead=True).wait(timeout=0.02)


async def attempt(harness: Harness, client: AsyncClient, lease: float) -> AsyncHold | None:
    return await client.lock("a", lease=lease).acquire(blocking=False)


OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation  # type: ignore[attr-defined]
    for operation in (
        *(acquire, acquire_and_release, in_turn, release_by_the_lock, block, nested, block_with_extend, attempt),
        *(upgrade, step_down, permits, several, several_kinds, several_in_vain, lead),
        *(latch, meeting, lonely),
    )
}


async def check_leftovers(observer: AsyncClient, name: str, before: int) -> int:
    """Check what an operation leaves in latches and barriers; return how often the latch has been counted."""
    if name == "latch":
        counted = 1000 - await observer.latch("a", 1000).count()
        assert counted in (before, before + 1), "an interrupted count counts once or not at all"
        return counted
    if name in PARTIES:
        assert await observer.inspect("barrier/a") is None
        assert await observer.barrier("a", PARTIES[name], drop_dead=True).n_waiting() == 0
    return 0


PARTIES = {"meeting": 1, "lonely": 2}
"""The number of members of each barrier."""


async def turns(harness: Harness, client: AsyncClient, lease: float) -> None:
    """Acquire a lock twice, each time for long enough to be renewed. This is slow, so it is not in `OPERATIONS`."""
    for _ in range(2):
        async with client.lock("a", lease=lease) as hold:
            await harness.sleep(lease * 0.45)
            await hold.renew()


async def done(operation: Awaitable[AsyncHold | None]) -> None:
    """Run an operation, and release the hold that it returns."""
    hold = await operation
    if hold is not None:
        await hold.release()

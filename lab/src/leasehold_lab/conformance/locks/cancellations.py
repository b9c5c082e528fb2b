"""A cancelled wait ends at once, leaves no trace in the queue, and delays no other waiter."""

from __future__ import annotations

from functools import partial

from leasehold import Cancellation
from leasehold_lab.conformance.case_context import ALL, NAME, SOON, CaseContext, Variant, case, held

WAKES_WITHIN = 0.25
"""The longest median, in seconds, from a cancellation to the end of the acquire: no store may poll for it. What the
machine was late by is not counted.
"""

TIMES = 5


@case(ALL)
async def a_cancelled_waiter_leaves_the_queue_at_once(context: CaseContext) -> None:
    """It returns None; its queue entry is gone when it returns, and the next waiter is served."""
    client, waiting = context.client(), context.client()
    hold = await context.holder(client)
    took: list[float] = []
    for _ in range(TIMES):
        stop = Cancellation()
        job = context.harness.spawn(partial(context.lock(waiting).acquire, timeout=60, cancel=stop))
        await context.queued(client, 1)
        start = context.harness.now()
        stop.cancel()
        assert await job.result() is None
        took.append(context.harness.now() - start - context.late_since(start))
        info = await client.inspect(context.name)
        assert info is not None
        assert info.waiters == ()
        assert len(info.holders) == 1
    assert sorted(took)[TIMES // 2] <= WAKES_WITHIN, took
    behind = context.harness.spawn(lambda: context.holder(waiting))
    await context.queued(client, 1)
    await hold.release()
    await (await behind.result()).release()


@case(ALL)
async def a_waiter_behind_a_cancelled_one_is_not_delayed(context: CaseContext) -> None:
    """The one behind enters as soon as the holder leaves, not when a lease of the cancelled one has ended."""
    client, stop = context.client(), Cancellation()
    hold = await context.holder(client)
    first = context.harness.spawn(lambda: context.lock().acquire(timeout=60, cancel=stop))
    await context.queued(client, 1)
    behind = context.harness.spawn(lambda: context.holder())
    await context.queued(client, 2)
    stop.cancel()
    assert await first.result() is None
    start = context.harness.now()
    await hold.release()
    next_hold = await behind.result()
    context.ended_within(start, 0.0)
    await next_hold.release()


@case(ALL)
async def an_acquire_after_its_cancellation_takes_nothing(context: CaseContext) -> None:
    """A cancelled object stays cancelled: an acquire of a free name returns None, too, and leaves no trace."""
    client, stop = context.client(), Cancellation()
    assert await context.lock(client).acquire(timeout=SOON, cancel=stop) is not None
    await context.lock(client, "another").acquire(timeout=SOON, cancel=stop)
    stop.cancel()
    stop.cancel()
    lock = context.lock(client, "third")
    assert stop.cancelled
    assert await lock.acquire(cancel=stop) is None
    assert await lock.acquire(blocking=False, cancel=stop) is None
    assert not await lock.locked()
    assert len(await client.holds()) == 2, "what was acquired before is kept"


@case((Variant.LOCK,))
async def one_cancellation_ends_all_waits_that_got_it(context: CaseContext) -> None:
    """Of several names and clients; a multi-lock gives back the names that it had."""
    client, stop = context.client(), Cancellation()
    hold = await context.holder(client)
    others = [context.client(), context.client()]
    locks = [*map(context.lock, others), context.client().multi_lock(["a", NAME, "z"])]
    jobs = [context.harness.spawn(partial(lock.acquire, cancel=stop)) for lock in locks]
    await context.queued(client, 3)
    stop.cancel()
    assert [await job.result() for job in jobs] == [None] * 3
    assert [info.name for info in await client.holds()] == [NAME]
    await held(hold).release()


@case((Variant.LOCK,), needs=("shared", "fair", "upgrades"))
async def an_upgrade_may_be_cancelled(context: CaseContext) -> None:
    """The reader's hold stays, and readers that were kept out by the waiting writer enter."""
    client, stop = context.client(), Cancellation()
    rw_lock = client.rw_lock(NAME)
    async with context.client().rw_lock(NAME).reader():
        hold = await rw_lock.upgradeable().acquire(timeout=SOON)
        assert hold is not None
        job = context.harness.spawn(lambda: hold.upgrade(cancel=stop))
        await context.queued(client, 1)
        stop.cancel()
        assert await job.result() is None
        hold.raise_if_lost()
        async with context.client().rw_lock(NAME, timeout=SOON).reader():
            await hold.release()

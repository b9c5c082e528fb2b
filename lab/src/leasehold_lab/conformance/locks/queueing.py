"""Who waits is served in order of arrival, at once, and who gave up does not stand in the way."""

from __future__ import annotations

from functools import partial

from leasehold_lab.conformance.case_context import (
    ALL,
    GIVES_UP,
    MUTEX,
    SOON,
    UNFAIR,
    CaseContext,
    Variant,
    case,
    held,
)
from leasehold_lab.runtimes.harnesses import Job

WAITERS = 5
HAND_OVERS = 7

WAKES_WITHIN = 0.25
"""Seconds from a release to the next holder's first step, the median of `HAND_OVERS`: no store may poll more slowly."""


@case(ALL, needs=("fair",))
async def waiters_enter_in_order_of_arrival(context: CaseContext) -> None:
    """The name is handed from each holder to the one who has waited longest."""
    client, entered = context.client(), list[int]()
    hold = await context.holder(client)

    async def wait(number: int) -> None:
        async with context.lock():
            entered.append(number)

    jobs = list[Job[None]]()
    for number in range(WAITERS):
        jobs.append(context.harness.spawn(partial(wait, number)))
        await context.queued(client, number + 1)
    await hold.release()
    for job in jobs:
        await job.result()
    assert entered == list(range(WAITERS))


@case(ALL)
async def who_gave_up_is_skipped(context: CaseContext) -> None:
    """A waiter that ran out of time is out of the queue: the next one enters at once."""
    client = context.client()
    hold = await context.holder(client)
    first = context.harness.spawn(lambda: context.lock().acquire(timeout=GIVES_UP))
    await context.queued(client, 1)
    second = context.harness.spawn(lambda: context.holder())
    await context.queued(client, 2)
    assert await first.result() is None
    await context.queued(client, 1)
    start = context.harness.now()
    await hold.release()
    next_hold = await second.result()
    assert context.harness.now() - start < SOON
    await next_hold.release()


@case((Variant.FAIR_LOCK, Variant.FAIR_RLOCK))
async def a_try_never_overtakes(context: CaseContext) -> None:
    """While someone waits for a fair lock, a try of a newcomer fails, however often it is made."""
    client = context.client()
    hold = await context.holder(client)
    waiter = context.harness.spawn(lambda: context.holder())
    await context.queued(client, 1)
    newcomer = context.lock()
    assert await newcomer.acquire(blocking=False) is None
    await hold.release()
    assert await newcomer.acquire(blocking=False) is None
    await (await waiter.result()).release()


@case(UNFAIR)
async def waiters_wake_without_polling(context: CaseContext) -> None:
    """Two who take turns lose no time: the lease is long, so that no timer of it can be what wakes them."""
    harness, client, released, delays = context.harness, context.client(), 0.0, list[float]()
    hold = await context.holder(client)

    async def wait() -> None:
        async with context.lock():
            delays.append(harness.now() - released)

    for _ in range(HAND_OVERS):
        job = harness.spawn(wait)
        await context.queued(client, 1)
        released = harness.now()
        await hold.release()
        await job.result()
        hold = await context.holder(client)
    await hold.release()
    assert sorted(delays)[HAND_OVERS // 2] < WAKES_WITHIN


@case(MUTEX)
async def a_waiter_with_a_short_lease_keeps_its_place(context: CaseContext) -> None:
    """A waiter's place is kept alive by its client for longer than its lease."""
    client = context.client()
    hold, lease = await context.holder(client), context.kept(0.3)

    async def wait() -> None:  # who waited also releases: the writer's side belongs to its task or thread
        await held(await context.lock(lease=lease).acquire(timeout=SOON)).release()

    waiter = context.harness.spawn(wait)
    seen = await context.queued(client, 1)
    await context.harness.sleep(3.3 * lease)
    later = await client.inspect(context.name)
    assert later is not None
    assert [who.owner for who in later.waiters] == [who.owner for who in seen.waiters]
    await hold.release()
    await waiter.result()

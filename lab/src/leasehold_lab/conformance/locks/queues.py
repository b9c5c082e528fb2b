"""Waiters are served in order of arrival, at once; a waiter that gave up blocks no other."""

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
"""The longest median, in seconds, from a release to the next holder's first step: no store may poll more slowly. What
the machine was late by is not counted.
"""


@case(ALL, needs=("fair",))
async def waiters_enter_in_order_of_arrival(context: CaseContext) -> None:
    """Each holder hands the name over to the waiter that has waited longest."""
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
async def a_waiter_that_timed_out_is_skipped(context: CaseContext) -> None:
    """A waiter that timed out leaves the queue, so the next one enters at once."""
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
async def a_try_never_overtakes_a_waiter(context: CaseContext) -> None:
    """While a client waits for a fair lock, the tries of a new client fail."""
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
async def waiters_are_woken_without_polling(context: CaseContext) -> None:
    """Two clients that alternate lose no time; the lease is long, so that its timer cannot wake them."""
    harness, client, released, delays = context.harness, context.client(), 0.0, list[float]()
    hold = await context.holder(client)

    async def wait() -> None:
        async with context.lock():
            delays.append(harness.now() - released - context.late_since(released))

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
async def a_waiter_keeps_its_queue_entry_beyond_its_lease(context: CaseContext) -> None:
    """The client renews the queue entry of a waiter."""
    client = context.client()
    hold, lease = await context.holder(client), context.lasting

    async def wait() -> None:  # the waiter also releases: the writer's side belongs to its task or thread
        await held(await context.lock(lease=lease).acquire(timeout=2 * SOON + 2 * lease)).release()

    waiter = context.harness.spawn(wait)
    seen = await context.queued(client, 1)
    await context.harness.sleep(2.2 * lease)
    later = await client.inspect(context.name)
    assert later is not None
    assert [who.owner for who in later.waiters] == [who.owner for who in seen.waiters]
    await hold.release()
    await waiter.result()

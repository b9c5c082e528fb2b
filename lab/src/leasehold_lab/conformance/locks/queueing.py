"""Who waits is served in order of arrival, at once, and who gave up does not stand in the way."""

from __future__ import annotations

from functools import partial

from leasehold_lab.conformance.case_context import (
    ALL,
    GIVES_UP,
    MUTEX,
    SOON,
    UNFAIR,
    Arena,
    Variant,
    case,
    held,
)
from leasehold_lab.runtimes.case_runtimes import Job

WAITERS = 5
HAND_OVERS = 7

WAKES_WITHIN = 0.25
"""Seconds from a release to the next holder's first step, the median of `HAND_OVERS`: no store may poll more slowly."""


@case(ALL, needs=("fair",))
async def waiters_enter_in_order_of_arrival(arena: Arena) -> None:
    """The name is handed from each holder to the one who has waited longest."""
    client, entered = arena.client(), list[int]()
    hold = await arena.holder(client)

    async def wait(number: int) -> None:
        async with arena.lock():
            entered.append(number)

    jobs = list[Job[None]]()
    for number in range(WAITERS):
        jobs.append(arena.world.spawn(partial(wait, number)))
        await arena.queued(client, number + 1)
    await hold.release()
    for job in jobs:
        await job.result()
    assert entered == list(range(WAITERS))


@case(ALL)
async def who_gave_up_is_skipped(arena: Arena) -> None:
    """A waiter that ran out of time is out of the queue: the next one enters at once."""
    client = arena.client()
    hold = await arena.holder(client)
    first = arena.world.spawn(lambda: arena.lock().acquire(timeout=GIVES_UP))
    await arena.queued(client, 1)
    second = arena.world.spawn(lambda: arena.holder())
    await arena.queued(client, 2)
    assert await first.result() is None
    await arena.queued(client, 1)
    start = arena.world.now()
    await hold.release()
    next_hold = await second.result()
    assert arena.world.now() - start < SOON
    await next_hold.release()


@case((Variant.FAIR_LOCK, Variant.FAIR_RLOCK))
async def a_try_never_overtakes(arena: Arena) -> None:
    """While someone waits for a fair lock, a try of a newcomer fails, however often it is made."""
    client = arena.client()
    hold = await arena.holder(client)
    waiter = arena.world.spawn(lambda: arena.holder())
    await arena.queued(client, 1)
    newcomer = arena.lock()
    assert await newcomer.acquire(blocking=False) is None
    await hold.release()
    assert await newcomer.acquire(blocking=False) is None
    await (await waiter.result()).release()


@case(UNFAIR)
async def waiters_wake_without_polling(arena: Arena) -> None:
    """Two who take turns lose no time: the lease is long, so that no timer of it can be what wakes them."""
    world, client, released, delays = arena.world, arena.client(), 0.0, list[float]()
    hold = await arena.holder(client)

    async def wait() -> None:
        async with arena.lock():
            delays.append(world.now() - released)

    for _ in range(HAND_OVERS):
        job = world.spawn(wait)
        await arena.queued(client, 1)
        released = world.now()
        await hold.release()
        await job.result()
        hold = await arena.holder(client)
    await hold.release()
    assert sorted(delays)[HAND_OVERS // 2] < WAKES_WITHIN


@case(MUTEX)
async def a_waiter_with_a_short_lease_keeps_its_place(arena: Arena) -> None:
    """A waiter's place is kept alive by its client for longer than its lease."""
    client = arena.client()
    hold, lease = await arena.holder(client), arena.kept(0.3)

    async def wait() -> None:  # who waited also releases: the writer's side belongs to its task or thread
        await held(await arena.lock(lease=lease).acquire(timeout=SOON)).release()

    waiter = arena.world.spawn(wait)
    seen = await arena.queued(client, 1)
    await arena.world.sleep(3.3 * lease)
    later = await client.inspect(arena.name)
    assert later is not None
    assert [who.owner for who in later.waiters] == [who.owner for who in seen.waiters]
    await hold.release()
    await waiter.result()

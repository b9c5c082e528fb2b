"""Permits never exceed the limit; a request gets all its permits or none, in its turn."""

from __future__ import annotations

from functools import partial
from typing import Any

from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, NameInUse, NotHeld
from leasehold.primitives.locks.semaphore import AsyncSemaphore
from leasehold_lab.conformance.case_context import LASTING, NAME, SOON, CaseContext, case, held, raised
from leasehold_lab.runtimes.harnesses import Job

SEM = ("permits", "fair")
JOBS, ROUNDS = 6, 5


def sem(context: CaseContext, permits: int = 3, client: AsyncClient | None = None, **options: Any) -> AsyncSemaphore:
    """Make a semaphore of the given client or of a new one."""
    return (context.client() if client is None else client).semaphore(NAME, permits, **options)


@case(needs=SEM)
async def permits_never_exceed_the_limit(context: CaseContext) -> None:
    """Many clients request permits of all sizes; at no moment do they exceed the limit."""
    harness, out, most = context.harness, 0, 0

    async def work(size: int) -> None:
        nonlocal out, most
        mine = sem(context)
        for _ in range(ROUNDS):
            async with mine.permits(size):
                out += size
                most = max(most, out)
                assert out <= 3
                await harness.sleep(0.001)
                out -= size

    for job in [harness.spawn(partial(work, 1 + number % 3)) for number in range(JOBS)]:
        await job.result()
    assert out == 0
    assert most == 3
    assert await sem(context).available() == 3


@case(needs=SEM)
async def a_request_gets_all_its_permits_or_none(context: CaseContext) -> None:
    """A request for more than is left takes nothing, so the rest stays available to others."""
    one, two = sem(context), sem(context)
    first = held(await one.acquire(2))
    assert await two.acquire(2, blocking=False) is None
    assert await two.acquire(2, timeout=0.1) is None
    assert await two.available() == 1
    assert not await two.locked()
    assert await two.permits(2).locked()
    second = held(await two.acquire(blocking=False))
    assert second.token > first.token
    assert await two.locked()
    assert await two.available() == 0
    await first.release()
    assert await two.available() == 2
    await second.release()
    assert await two.available() == two.limit == 3


@case(needs=SEM)
async def a_request_for_too_many_permits_is_refused(context: CaseContext) -> None:
    """A request above the limit, or for none, raises an error at once."""
    mine = sem(context)
    for n in (0, -1, 4):
        await raised(ValueError, mine.acquire(n))
    async with mine.permits(3):
        assert await mine.available() == 0


@case(needs=SEM)
async def a_large_request_is_not_starved(context: CaseContext) -> None:
    """By default, later small requests wait behind it; with ``fair=False`` they take what is left."""
    client = context.client()
    first, second = held(await sem(context).acquire()), held(await sem(context).acquire())
    large = context.harness.spawn(lambda: sem(context).acquire(3))
    await context.queued(client, 1)
    assert await sem(context).acquire(blocking=False) is None
    await held(await sem(context, fair=False).acquire(blocking=False)).release()
    await first.release()
    assert await sem(context).acquire(blocking=False) is None
    await second.release()
    await held(await large.result()).release()


@case(needs=SEM)
async def all_waiters_that_fit_enter_together(context: CaseContext) -> None:
    """When many permits are released, as many waiters as fit enter, in order of arrival."""
    client, entered, stay = context.client(), list[int](), True
    first = held(await sem(context).acquire(3))

    async def wait(number: int) -> None:
        async with sem(context):
            entered.append(number)
            while stay:
                await context.harness.sleep(0.002)

    jobs = list[Job[None]]()
    for number in range(4):
        jobs.append(context.harness.spawn(partial(wait, number)))
        await context.queued(client, number + 1)
    await first.release()
    await context.queued(client, 1)
    until = context.harness.now() + SOON
    while len(entered) < 3 and context.harness.now() < until:
        await context.harness.sleep(0.002)
    seen, stay = sorted(entered), False
    assert seen == [0, 1, 2]
    for job in jobs:
        await job.result()
    assert entered[3] == 3


@case(needs=SEM)
async def permits_that_are_not_renewed_expire(context: CaseContext) -> None:
    """Permits of a crashed holder are available again after their lease, each on its own."""
    before = context.harness.now()
    short = context.at_least_shortest(0.7 * LASTING)  # the other lease is renewed meanwhile
    dead = held(await sem(context, lease=short, renew=False).acquire(2))
    after = context.harness.now()
    alive = held(await sem(context, lease=context.lasting).acquire())
    mine = sem(context)
    two = held(await mine.acquire(2, timeout=SOON))
    assert context.harness.now() - before > short * 0.99, "the lease counted from before the request"
    context.ended_within(after, context.expired_after(short))
    await raised(LeaseLost, dead.release())
    alive.raise_if_lost()
    two.raise_if_lost()
    assert await mine.available() == 0
    await two.release()
    await alive.release()


@case(needs=SEM)
async def release_ends_the_last_hold_of_the_caller(context: CaseContext) -> None:
    """`release` ends the caller's last hold, whatever its size; then the one before."""
    mine = sem(context)
    held(await mine.acquire())
    held(await mine.acquire(2))
    await mine.release()
    assert await mine.available() == 2
    await context.harness.spawn(lambda: raised(NotHeld, mine.release())).result()
    await mine.release()
    assert await mine.available() == 3
    await raised(NotHeld, mine.release())


@case(needs=SEM)
async def a_semaphore_refuses_another_limit_while_in_use(context: CaseContext) -> None:
    """Another limit raises an error that names both; a free name accepts a new limit."""
    hold = held(await sem(context).acquire())
    error = await raised(NameInUse, sem(context, 5).acquire(timeout=1))
    assert error.name == NAME
    assert "3" in str(error)
    assert "5" in str(error)
    await raised(NameInUse, context.client().lock(NAME).acquire(timeout=1))
    await hold.release()
    async with sem(context, 5).permits(5):
        await raised(NameInUse, sem(context).acquire(timeout=1))

"""Never more permits are out than there are; a request gets all it asks for or nothing, in its turn."""

from __future__ import annotations

from functools import partial
from typing import Any

from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, NameInUse, NotHeld
from leasehold.primitives.locks.semaphore import AsyncSemaphore
from leasehold_lab.conformance.case_context import NAME, NOISE, SHORT, SOON, CaseContext, case, held, raised
from leasehold_lab.runtimes.harnesses import Job

SEM = ("permits", "fair")
JOBS, ROUNDS = 6, 5


def sem(context: CaseContext, permits: int = 3, client: AsyncClient | None = None, **options: Any) -> AsyncSemaphore:
    """Make a semaphore of a client of its own unless one is given."""
    return (context.client() if client is None else client).semaphore(NAME, permits, **options)


@case(needs=SEM)
async def never_more_than_there_are(context: CaseContext) -> None:
    """Requests of all sizes by many clients: at no moment are more permits out than the limit."""
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
async def all_or_none(context: CaseContext) -> None:
    """A request for more than is left takes nothing; what is left is still there for others."""
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
async def more_than_there_are_is_refused(context: CaseContext) -> None:
    """A request that can never be met is an error at once, and so is one for none."""
    mine = sem(context)
    for n in (0, -1, 4):
        await raised(ValueError, mine.acquire(n))
    async with mine.permits(3):
        assert await mine.available() == 0


@case(needs=SEM)
async def a_large_request_is_not_starved(context: CaseContext) -> None:
    """By default small requests that come later wait behind it; with ``fair=False`` they take what is left."""
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
async def those_who_fit_enter_together(context: CaseContext) -> None:
    """When many permits come back, as many waiters enter as fit, in order of arrival."""
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
async def a_crash_leaks_no_permit(context: CaseContext) -> None:
    """Permits that are not renewed are there again when their lease has run out, each on its own."""
    before = context.harness.now()
    dead = held(await sem(context, lease=context.short, renew=False).acquire(2))
    after = context.harness.now()
    alive = held(await sem(context, lease=context.short).acquire())
    mine = sem(context)
    two = held(await mine.acquire(2, timeout=SOON))
    assert context.harness.now() - before > context.short * 0.99, "the lease began after it was asked for"
    assert context.harness.now() - after < context.gone(SHORT) + NOISE
    await raised(LeaseLost, dead.release())
    alive.raise_if_lost()
    two.raise_if_lost()
    assert await mine.available() == 0
    await two.release()
    await alive.release()


@case(needs=SEM)
async def a_semaphore_releases_what_it_acquired(context: CaseContext) -> None:
    """`release` gives back the caller's last hold, of whatever size; then the one before."""
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
async def another_limit_is_refused_while_it_is_in_use(context: CaseContext) -> None:
    """All who use a name say the same limit; who says another is told both. When it is free the limit may change."""
    hold = held(await sem(context).acquire())
    error = await raised(NameInUse, sem(context, 5).acquire(timeout=1))
    assert error.name == NAME
    assert "3" in str(error)
    assert "5" in str(error)
    await raised(NameInUse, context.client().lock(NAME).acquire(timeout=1))
    await hold.release()
    async with sem(context, 5).permits(5):
        await raised(NameInUse, sem(context).acquire(timeout=1))

"""Latches: every count counts once, an open latch stays open, and waiters return at once."""

from __future__ import annotations

from functools import partial
from typing import Any

from leasehold.errors import NameInUse
from leasehold.primitives.coordination.latch import AsyncLatch
from leasehold_lab.conformance.case_context import LASTING, NOISE, SOON, CaseContext, Variant, case, raised

NAME = "import {7}"
WAITERS = 4


@case((Variant.LOCK,), needs=("cells",))
async def a_latch_opens_at_the_last_count(context: CaseContext) -> None:
    """A latch begins closed at its full count, and stays at 0 after further counts."""
    ours, theirs = context.client().latch(NAME, 3), context.client().latch(NAME, 3)
    assert (ours.total, await ours.count()) == (3, 3)
    assert not await ours.wait(timeout=0)
    assert await ours.count_down() == 2
    assert await theirs.count() == 2
    assert not await theirs.wait(timeout=0.05)
    assert await theirs.count_down(2) == 0
    for latch in (ours, theirs):
        assert await latch.wait()
        assert await latch.wait(timeout=0)
        assert await latch.count_down(5) == 0
        assert await latch.count() == 0


@case((Variant.LOCK,), needs=("cells",))
async def a_latch_wakes_all_waiters(context: CaseContext) -> None:
    """Each of several clients returns soon after the last count, and not before it."""
    counted = context.harness.event()

    async def wait(latch: AsyncLatch) -> None:
        assert await latch.wait(timeout=SOON)
        assert counted.is_set()

    one = context.client().latch(NAME, 2)
    latches = [context.client().latch(NAME, 2) for _ in range(WAITERS)] + [one, one]
    jobs = [context.harness.spawn(partial(wait, latch)) for latch in latches]
    latch = context.client().latch(NAME, 2)
    await latch.count_down()
    await context.harness.sleep(0.1)
    assert not any(job.done() for job in jobs)
    counted.set()
    await latch.count_down()
    start = context.harness.now()
    for job in jobs:
        await job.result()
    context.ended_within(start, 0.25)


@case((Variant.LOCK,), needs=("cells",))
async def concurrent_counts_count_once_each(context: CaseContext) -> None:
    """No concurrent count is lost or counted twice."""
    each, clients = 5, 6
    left: list[int] = []

    async def count() -> None:
        latch = context.client().latch(NAME, each * clients + 1)
        left.extend([await latch.count_down() for _ in range(each)])

    await context.harness.gather(*(count() for _ in range(clients)))
    latch = context.client().latch(NAME, each * clients + 1)
    assert await latch.count() == 1
    assert min(left) == 1
    assert await latch.count_down() == 0


@case((Variant.LOCK,), needs=("cells",))
async def a_latch_wait_returns_false_at_its_timeout(context: CaseContext) -> None:
    """`wait` returns False at its timeout, not before and not long after."""
    latch = context.client().latch(NAME, 1)
    start = context.harness.now()
    assert not await latch.wait(timeout=0.3)
    assert context.harness.now() - start >= 0.29
    context.ended_within(start, 0.3)


@case((Variant.LOCK,), needs=("cells",))
async def a_reset_closes_a_latch(context: CaseContext) -> None:
    """Waiters of the new round keep waiting; waiters of a round that opened return, however soon the reset follows."""
    latch = context.client().latch(NAME, 2)
    waiting = context.harness.spawn(lambda: context.client().latch(NAME, 2).wait(timeout=2 * SOON))
    await context.harness.sleep(NOISE)  # it has read the count by now
    await latch.count_down()
    await latch.reset()
    assert await latch.count() == 2
    await context.harness.sleep(0.05)
    assert not waiting.done()
    await latch.count_down(2)
    await latch.reset()
    assert await waiting.result()
    assert not await latch.wait(timeout=0)


@case((Variant.LOCK,), needs=("cells",))
async def all_users_of_a_latch_must_give_the_same_count(context: CaseContext) -> None:
    """A different count raises an error that names both counts; a reset accepts the new one."""
    ours, theirs = context.client().latch(NAME, 3), context.client().latch(NAME, 5)
    await ours.count_down()
    for work in (theirs.count(), theirs.count_down(), theirs.wait(timeout=1)):
        error = await raised(NameInUse, work)
        assert "3" in str(error)
        assert "5" in str(error)
    await theirs.reset()
    assert await theirs.count() == 5
    await raised(NameInUse, ours.count())


@case((Variant.LOCK,), needs=("cells",))
async def a_latch_is_reset_to_another_count_while_others_wait(context: CaseContext) -> None:
    """Those who wait continue to wait, for the new count, whether it was counted before or not."""
    names = ("counted", "not counted")
    await context.client().latch(names[0], 2).count_down()
    jobs = [context.harness.spawn(context.client().latch(name, 2).wait) for name in names]
    await context.harness.sleep(NOISE)  # they have read the count by now
    others = [context.client().latch(name, 3) for name in names]
    for latch in others:
        await latch.reset()
    for _ in range(2):
        for latch in others:
            await latch.count_down()
        await context.harness.sleep(0.05)
        assert not any(job.done() for job in jobs)
    for latch, job in zip(others, jobs, strict=True):
        await latch.count_down()
        assert await job.result()


@case((Variant.LOCK,), needs=("cells",))
async def a_waiter_gets_an_error_if_others_count_to_another_number(context: CaseContext) -> None:
    """Nobody had counted as it began to wait, and nobody has reset the latch."""
    job = context.harness.spawn(lambda: context.client().latch(NAME, 2).wait(timeout=2 * SOON))
    await context.harness.sleep(NOISE)
    await context.client().latch(NAME, 3).count_down()
    await raised(NameInUse, job.result())


@case((Variant.LOCK,), needs=("cells",))
async def a_latch_expires_after_its_ttl(context: CaseContext) -> None:
    """After its ``ttl`` without a count, a latch is closed at its full count."""
    latch = context.client().latch(NAME, 1, ttl=LASTING)
    await latch.count_down()
    assert await latch.wait(timeout=0)
    await context.harness.sleep(context.expired_after(LASTING))
    assert await latch.count() == 1


@case((Variant.LOCK,), needs=("cells",))
async def a_latch_refuses_an_invalid_count(context: CaseContext) -> None:
    """An invalid count raises an error before any request is sent."""
    client = context.client()

    async def made(count: Any, **options: Any) -> AsyncLatch:
        return client.latch(NAME, count, **options)

    for wrong in (0, -1, 1_000_001):
        await raised(ValueError, made(wrong))
        await raised(ValueError, client.latch(NAME, 2).count_down(wrong))
    for odd in (True, 1.5, "2"):
        await raised(TypeError, made(odd))
    await raised(ValueError, made(2, ttl=0))
    await raised(ValueError, client.latch(NAME, 2).wait(timeout=-2))

"""Every call on a lost hold raises, and a lost hold does not affect the next holder."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import (
    MUTEX,
    SOON,
    UNFAIR,
    CaseContext,
    case,
    checked,
    held,
    raised,
)


@case(UNFAIR)
async def every_call_on_a_lost_hold_raises(context: CaseContext) -> None:
    """After the lease has expired, every call on the hold raises; `release` does, too."""
    hold = await context.holder(lease=context.short, renew=False)
    await context.harness.sleep(context.short + 0.1)
    assert hold.lost
    assert hold.remaining == 0
    error = await raised(LeaseLost, checked(hold))
    assert (error.name, error.token, error.owner) == (context.name, hold.token, hold.owner)
    await raised(LeaseLost, hold.renew())
    await raised(LeaseLost, hold.release())
    assert hold.lost


@case(UNFAIR)
async def a_block_that_lost_its_lock_raises(context: CaseContext) -> None:
    """``with`` raises `LeaseLost` at its end; a task is cancelled in its block, a thread is not."""
    harness = context.harness
    start = harness.now()

    async def work() -> None:
        async with context.lock(lease=context.short, renew=False):
            await harness.sleep(3 * context.short)

    await raised(LeaseLost, work())
    took = harness.now() - start
    context.ended_within(start, 3 * context.short)
    assert took >= context.short * 0.9


@case(UNFAIR)
async def a_late_release_does_not_free_the_next_holder(context: CaseContext) -> None:
    """The late release of an expired holder is refused, and does not free the name."""
    client = context.client()
    late = await context.holder(lease=context.short, renew=False)
    successor = await context.holder(client)
    assert successor.token > late.token
    await raised(LeaseLost, late.release())
    successor.raise_if_lost()
    info = await client.inspect(context.name)
    assert info is not None
    assert [who.token for who in info.holders] == [successor.token]
    assert await context.lock().acquire(blocking=False) is None
    await successor.release()


@case(MUTEX)
async def on_lost_calls_each_callback_once(context: CaseContext) -> None:
    """Each callback is called once with the error; one registered after the loss is called at once."""
    hold, heard, late = await context.holder(lease=context.short, renew=False), list[LeaseLost](), list[LeaseLost]()
    hold.on_lost(heard.append)
    until = context.harness.now() + SOON
    while not heard and context.harness.now() < until:
        await context.harness.sleep(0.02)
    assert hold.lost
    hold.on_lost(late.append)
    await raised(LeaseLost, hold.release())
    await context.harness.sleep(0.05)
    assert [error.token for error in heard] == [hold.token]
    assert [error.token for error in late] == [hold.token]


@case(MUTEX)
async def on_lost_is_not_called_after_a_release(context: CaseContext) -> None:
    """A released hold is not lost."""
    heard, lease = list[LeaseLost](), context.lasting
    hold = await context.holder(lease=lease, renew=False)
    hold.on_lost(heard.append)
    await hold.release()
    await context.harness.sleep(lease + 0.1)
    assert heard == []
    assert not hold.lost


@case(UNFAIR)
async def a_lost_lock_can_be_acquired_again(context: CaseContext) -> None:
    """The lock object can be used again after a loss."""
    lock = context.lock(lease=context.short, renew=False)
    first = held(await lock.acquire())
    await context.harness.sleep(context.short + 0.1)
    await raised(LeaseLost, first.release())
    second = held(await lock.acquire(timeout=SOON))
    assert second.token > first.token
    await second.release()

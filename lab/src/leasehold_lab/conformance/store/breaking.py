"""An operator can free a name from the holder that was seen, and from no other."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import MUTEX, SOON, UNFAIR, CaseContext, case, raised


@case(UNFAIR)
async def a_wrong_token_breaks_nothing(context: CaseContext) -> None:
    """Only the holder that has the token is broken; what is not held cannot be."""
    client = context.client()
    assert not await client.force_release(context.name, 1)
    hold = await context.holder()
    assert not await client.force_release(context.name, hold.token + 1)
    assert not await client.force_release(context.name, hold.token - 1)
    assert not await client.force_release("another", hold.token)
    hold.raise_if_lost()
    assert await context.lock().acquire(blocking=False) is None
    assert await hold.release() is True
    assert not await client.force_release(context.name, hold.token)


@case(MUTEX)
async def the_broken_holder_is_told(context: CaseContext) -> None:
    """It hears of it at its next renewal; the next token is higher, and its late release hurts nobody."""
    client = context.client()
    lease = context.kept(0.9)
    hold = await context.holder(lease=lease)
    assert await client.force_release(context.name, hold.token)
    successor = await context.holder()
    assert successor.token > hold.token
    until = context.harness.now() + lease
    while not hold.lost and context.harness.now() < until:
        await context.harness.sleep(0.02)
    assert hold.lost
    await raised(LeaseLost, hold.release())
    successor.raise_if_lost()
    assert await successor.release() is True


@case(UNFAIR)
async def a_break_hands_over(context: CaseContext) -> None:
    """Who waits gets the name at once, not when the lease of the broken one would have ended."""
    client = context.client()
    hold = await context.holder(lease=60.0)
    waiter = context.harness.spawn(lambda: context.holder())
    await context.queued(client, 1)
    start = context.harness.now()
    assert await client.force_release(context.name, hold.token)
    successor = await waiter.result()
    assert context.harness.now() - start < SOON
    assert successor.token > hold.token
    await successor.release()
    await raised(LeaseLost, hold.release())

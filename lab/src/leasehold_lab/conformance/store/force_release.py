"""An operator can free a name from the holder whose token is given, and from no other."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import MUTEX, SOON, UNFAIR, CaseContext, case, raised


@case(UNFAIR)
async def force_release_needs_the_token_of_the_holder(context: CaseContext) -> None:
    """`force_release` frees a name only from the holder with that token, and returns False if the name is free."""
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
async def a_holder_is_notified_of_a_forced_release(context: CaseContext) -> None:
    """The holder is notified at its next renewal. The next token is higher, and its late release changes nothing."""
    client = context.client()
    lease = context.lasting
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
async def a_forced_release_hands_over(context: CaseContext) -> None:
    """A waiter gets the name at once, not at the end of the old lease."""
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

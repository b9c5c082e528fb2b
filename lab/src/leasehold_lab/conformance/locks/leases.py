"""A lease ends when nobody renews it, not before, and is kept alive while its holder lives."""

from __future__ import annotations

from leasehold.errors import NotHeld
from leasehold_lab.conformance.case_context import MUTEX, NOISE, SHORT, SOON, UNFAIR, CaseContext, case, raised


@case(MUTEX)
async def renewals_keep_a_short_lease_alive(context: CaseContext) -> None:
    """A holder that lives holds for many times its lease."""
    lease = context.kept(0.6)
    hold = await context.holder(lease=lease)
    await context.harness.sleep(2.5 * lease)
    hold.raise_if_lost()
    assert 0 < hold.remaining <= lease
    assert await context.lock().acquire(blocking=False) is None
    assert await hold.release() is True


@case(UNFAIR)
async def a_fixed_lease_is_free_when_it_ends_and_not_before(context: CaseContext) -> None:
    """With ``renew=False`` the next one enters when the lease has run out: no earlier, and at most 250 ms later."""
    start = context.harness.now()
    first = await context.holder(lease=context.short, renew=False)
    successor = await context.holder()
    assert successor.token > first.token
    assert context.short * 0.99 <= context.harness.now() - start < context.gone(SHORT) + 0.15 + NOISE
    await successor.release()


@case(MUTEX)
async def max_hold_ends_the_renewals(context: CaseContext) -> None:
    """After ``max_hold`` the lease runs out like a fixed one."""
    start, max_hold = context.harness.now(), 2 * context.short
    first = await context.holder(lease=context.short, max_hold=max_hold)
    successor = await context.holder()
    assert first.lost
    assert max_hold <= context.harness.now() - start < max_hold + context.gone(SHORT) + 0.15 + NOISE
    await successor.release()


@case(MUTEX)
async def extend_sets_the_lease_to_full_length(context: CaseContext) -> None:
    """A fixed lease that its holder extends lasts from then on."""
    hold = await context.holder(lease=1.2, renew=False)
    await context.harness.sleep(0.7)
    await hold.renew()
    assert hold.remaining > 0.6
    await context.harness.sleep(0.7)
    hold.raise_if_lost()
    assert await context.lock().acquire(blocking=False) is None
    await hold.release()
    await raised(NotHeld, hold.renew())


@case(MUTEX, needs=("lock_delay",))
async def after_an_expiry_the_name_is_kept_free(context: CaseContext) -> None:
    """``lock_delay`` counts from the end of an expired lease, for waiters and for newcomers."""
    start, client = context.harness.now(), context.client()
    first = await context.holder(lease=0.3, renew=False, lock_delay=0.5)
    waiter = context.harness.spawn(lambda: context.holder())
    await context.harness.sleep(0.5)
    assert await context.lock().acquire(blocking=False) is None
    info = await client.inspect(context.name)
    assert info is not None
    assert info.holders == ()
    assert 0 < info.free_in <= 0.5
    successor = await waiter.result()
    assert successor.token > first.token
    assert 0.8 * 0.99 <= context.harness.now() - start < 0.8 + 0.25 + NOISE
    await successor.release()


@case(MUTEX, needs=("lock_delay",))
async def after_a_release_there_is_no_delay(context: CaseContext) -> None:
    """A holder that released is at work no more, so nobody has to wait."""
    client = context.client()
    hold = await context.holder(client, lock_delay=60.0)
    waiter = context.harness.spawn(lambda: context.holder())
    await context.queued(client, 1)
    start = context.harness.now()
    await hold.release()
    successor = await waiter.result()
    assert context.harness.now() - start < SOON
    await successor.release()


@case(MUTEX, needs=("lock_delay",))
async def after_a_break_the_delay_counts(context: CaseContext) -> None:
    """A holder that was broken may still be at work, as after an expiry."""
    client = context.client()
    hold = await context.holder(client, lock_delay=0.5)
    start = context.harness.now()
    assert await client.force_release(context.name, hold.token)
    successor = await context.holder()
    assert 0.5 * 0.99 <= context.harness.now() - start < 0.5 + 0.25 + NOISE
    assert successor.token > hold.token
    await successor.release()

"""A lease is renewed while its holder lives, and expires on time when it is not renewed."""

from __future__ import annotations

from leasehold.errors import NotHeld
from leasehold_lab.conformance.case_context import (
    LASTING,
    MUTEX,
    NOISE,
    SHORT,
    SOON,
    UNFAIR,
    CaseContext,
    case,
    held,
    raised,
)


@case(MUTEX)
async def renewals_keep_a_short_lease_alive(context: CaseContext) -> None:
    """A live holder holds for many times its lease."""
    lease = max(2.0, context.lasting)  # sessions of MySQL count whole seconds
    hold = await context.holder(lease=lease)
    await context.harness.sleep(2.5 * lease)
    hold.raise_if_lost()
    assert 0 < hold.remaining <= lease
    assert await context.lock().acquire(blocking=False) is None
    assert await hold.release() is True


@case(UNFAIR)
async def a_fixed_lease_ends_on_time(context: CaseContext) -> None:
    """With ``renew=False`` the next waiter enters when the lease expires: no earlier, and at most 250 ms later."""
    start = context.harness.now()
    first = await context.holder(lease=context.short, renew=False)
    successor = await context.holder()
    assert successor.token > first.token
    assert context.short * 0.99 <= context.harness.now() - start
    context.ended_within(start, context.expired_after(SHORT) + 0.15)
    await successor.release()


@case(MUTEX)
async def max_hold_ends_the_renewals(context: CaseContext) -> None:
    """After ``max_hold`` the lease expires like a fixed one."""
    start, lease, max_hold = context.harness.now(), context.lasting, 1.5 * context.lasting
    first = await context.holder(lease=lease, max_hold=max_hold)
    successor = held(await context.lock().acquire(timeout=2 * SOON))
    assert first.lost
    assert max_hold <= context.harness.now() - start
    context.ended_within(start, max_hold + context.expired_after(lease) + 0.15)
    await successor.release()


@case(MUTEX)
async def renew_sets_the_lease_to_its_full_length(context: CaseContext) -> None:
    """A fixed lease that its holder renews counts from then on."""
    lease = 5 * NOISE
    hold = await context.holder(lease=lease, renew=False)
    await context.harness.sleep(0.55 * lease)
    await hold.renew()
    assert hold.remaining > 0.5 * lease
    await context.harness.sleep(0.55 * lease)
    hold.raise_if_lost()
    assert await context.lock().acquire(blocking=False) is None
    await hold.release()
    await raised(NotHeld, hold.renew())


@case(MUTEX, needs=("lock_delay",))
async def a_lock_delay_follows_an_expiry(context: CaseContext) -> None:
    """``lock_delay`` counts from the end of an expired lease, for waiters and for new clients."""
    start, client, delay = context.harness.now(), context.client(), 0.2 + LASTING
    first = await context.holder(lease=0.3, renew=False, lock_delay=delay)
    waiter = context.harness.spawn(lambda: context.holder())
    await context.harness.sleep(0.5)
    assert await context.lock().acquire(blocking=False) is None
    info = await client.inspect(context.name)
    assert info is not None
    assert info.holders == ()
    assert 0 < info.free_in <= delay
    successor = await waiter.result()
    assert successor.token > first.token
    assert (0.3 + delay) * 0.99 <= context.harness.now() - start
    context.ended_within(start, 0.3 + delay + 0.25)
    await successor.release()


@case(MUTEX, needs=("lock_delay",))
async def no_lock_delay_follows_a_release(context: CaseContext) -> None:
    """After a release, the next client acquires at once."""
    client = context.client()
    hold = await context.holder(client, lock_delay=30.0)
    waiter = context.harness.spawn(lambda: context.holder())
    await context.queued(client, 1)
    start = context.harness.now()
    await hold.release()
    successor = await waiter.result()
    assert context.harness.now() - start < SOON
    await successor.release()


@case(MUTEX, needs=("lock_delay",))
async def a_lock_delay_follows_a_forced_release(context: CaseContext) -> None:
    """A holder whose lock was released by force may still be working, as after an expiry."""
    client = context.client()
    hold = await context.holder(client, lock_delay=0.5)
    start = context.harness.now()
    assert await client.force_release(context.name, hold.token)
    successor = await context.holder()
    assert context.harness.now() - start >= 0.5 * 0.99
    context.ended_within(start, 0.5 + 0.25)
    assert successor.token > hold.token
    await successor.release()

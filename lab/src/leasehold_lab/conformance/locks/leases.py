"""A lease ends when nobody renews it, not before, and is kept alive while its holder lives."""

from __future__ import annotations

from leasehold.errors import NotHeld
from leasehold_lab.conformance.case_context import MUTEX, NOISE, SHORT, SOON, UNFAIR, Arena, case, raised


@case(MUTEX)
async def renewals_keep_a_short_lease_alive(arena: Arena) -> None:
    """A holder that lives holds for many times its lease."""
    lease = arena.kept(0.6)
    hold = await arena.holder(lease=lease)
    await arena.world.sleep(2.5 * lease)
    hold.raise_if_lost()
    assert 0 < hold.remaining <= lease
    assert await arena.lock().acquire(blocking=False) is None
    assert await hold.release() is True


@case(UNFAIR)
async def a_fixed_lease_is_free_when_it_ends_and_not_before(arena: Arena) -> None:
    """With ``renew=False`` the next one enters when the lease has run out: no earlier, and at most 250 ms later."""
    start = arena.world.now()
    first = await arena.holder(lease=arena.short, renew=False)
    successor = await arena.holder()
    assert successor.token > first.token
    assert arena.short * 0.99 <= arena.world.now() - start < arena.gone(SHORT) + 0.15 + NOISE
    await successor.release()


@case(MUTEX)
async def max_hold_ends_the_renewals(arena: Arena) -> None:
    """After ``max_hold`` the lease runs out like a fixed one."""
    start, max_hold = arena.world.now(), 2 * arena.short
    first = await arena.holder(lease=arena.short, max_hold=max_hold)
    successor = await arena.holder()
    assert first.lost
    assert max_hold <= arena.world.now() - start < max_hold + arena.gone(SHORT) + 0.15 + NOISE
    await successor.release()


@case(MUTEX)
async def extend_sets_the_lease_to_full_length(arena: Arena) -> None:
    """A fixed lease that its holder extends lasts from then on."""
    hold = await arena.holder(lease=1.2, renew=False)
    await arena.world.sleep(0.7)
    await hold.renew()
    assert hold.remaining > 0.6
    await arena.world.sleep(0.7)
    hold.raise_if_lost()
    assert await arena.lock().acquire(blocking=False) is None
    await hold.release()
    await raised(NotHeld, hold.renew())


@case(MUTEX, needs=("lock_delay",))
async def after_an_expiry_the_name_is_kept_free(arena: Arena) -> None:
    """``lock_delay`` counts from the end of an expired lease, for waiters and for newcomers."""
    start, client = arena.world.now(), arena.client()
    first = await arena.holder(lease=0.3, renew=False, lock_delay=0.5)
    waiter = arena.world.spawn(lambda: arena.holder())
    await arena.world.sleep(0.5)
    assert await arena.lock().acquire(blocking=False) is None
    info = await client.inspect(arena.name)
    assert info is not None
    assert info.holders == ()
    assert 0 < info.free_in <= 0.5
    successor = await waiter.result()
    assert successor.token > first.token
    assert 0.8 * 0.99 <= arena.world.now() - start < 0.8 + 0.25 + NOISE
    await successor.release()


@case(MUTEX, needs=("lock_delay",))
async def after_a_release_there_is_no_delay(arena: Arena) -> None:
    """A holder that released is at work no more, so nobody has to wait."""
    client = arena.client()
    hold = await arena.holder(client, lock_delay=60.0)
    waiter = arena.world.spawn(lambda: arena.holder())
    await arena.queued(client, 1)
    start = arena.world.now()
    await hold.release()
    successor = await waiter.result()
    assert arena.world.now() - start < SOON
    await successor.release()


@case(MUTEX, needs=("lock_delay",))
async def after_a_break_the_delay_counts(arena: Arena) -> None:
    """A holder that was broken may still be at work, as after an expiry."""
    client = arena.client()
    hold = await arena.holder(client, lock_delay=0.5)
    start = arena.world.now()
    assert await client.force_release(arena.name, hold.token)
    successor = await arena.holder()
    assert 0.5 * 0.99 <= arena.world.now() - start < 0.5 + 0.25 + NOISE
    assert successor.token > hold.token
    await successor.release()

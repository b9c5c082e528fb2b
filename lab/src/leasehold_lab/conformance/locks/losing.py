"""Who lost the lock is told, at every look and at the end; who has it now is left alone."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import (
    MUTEX,
    NOISE,
    SOON,
    UNFAIR,
    Arena,
    case,
    checked,
    held,
    raised,
)


@case(UNFAIR)
async def a_lost_lease_is_told_at_every_call(arena: Arena) -> None:
    """After the lease ran out every call on the hold says so; `release` raises as well."""
    hold = await arena.holder(lease=arena.short, renew=False)
    await arena.world.sleep(arena.short + 0.1)
    assert hold.lost
    assert hold.remaining == 0
    error = await raised(LeaseLost, checked(hold))
    assert (error.name, error.token, error.owner) == (arena.name, hold.token, hold.owner)
    await raised(LeaseLost, hold.renew())
    await raised(LeaseLost, hold.release())
    assert hold.lost


@case(UNFAIR)
async def a_lost_block_ends_with_the_error(arena: Arena) -> None:
    """``with`` raises `LeaseLost` at its end; a task is cut short in its block, a thread is not."""
    world = arena.world
    start = world.now()

    async def work() -> None:
        async with arena.lock(lease=arena.short, renew=False):
            await world.sleep(3 * arena.short)

    await raised(LeaseLost, work())
    took = world.now() - start
    assert took < 3 * arena.short + NOISE
    assert took >= arena.short * 0.9


@case(UNFAIR)
async def the_successor_is_left_alone(arena: Arena) -> None:
    """The late release of an expired holder is refused, and does not free the name for a third."""
    client = arena.client()
    late = await arena.holder(lease=arena.short, renew=False)
    successor = await arena.holder(client)
    assert successor.token > late.token
    await raised(LeaseLost, late.release())
    successor.raise_if_lost()
    info = await client.inspect(arena.name)
    assert info is not None
    assert [who.token for who in info.holders] == [successor.token]
    assert await arena.lock().acquire(blocking=False) is None
    await successor.release()


@case(MUTEX)
async def on_lost_is_called_once(arena: Arena) -> None:
    """Each callback is called once with the error; one that comes late is called at once."""
    hold, heard, late = await arena.holder(lease=arena.short, renew=False), list[LeaseLost](), list[LeaseLost]()
    hold.on_lost(heard.append)
    until = arena.world.now() + SOON
    while not heard and arena.world.now() < until:
        await arena.world.sleep(0.02)
    assert hold.lost
    hold.on_lost(late.append)
    await raised(LeaseLost, hold.release())
    await arena.world.sleep(0.05)
    assert [error.token for error in heard] == [hold.token]
    assert [error.token for error in late] == [hold.token]


@case(MUTEX)
async def on_lost_is_not_called_after_a_release(arena: Arena) -> None:
    """A hold that was released was not lost."""
    heard = list[LeaseLost]()
    hold = await arena.holder(lease=arena.short, renew=False)
    hold.on_lost(heard.append)
    await hold.release()
    await arena.world.sleep(arena.short + 0.1)
    assert heard == []
    assert not hold.lost


@case(UNFAIR)
async def a_lost_lock_can_be_had_again(arena: Arena) -> None:
    """The object is as good as new after a loss."""
    lock = arena.lock(lease=arena.short, renew=False)
    first = held(await lock.acquire())
    await arena.world.sleep(arena.short + 0.1)
    await raised(LeaseLost, first.release())
    second = held(await lock.acquire(timeout=SOON))
    assert second.token > first.token
    await second.release()

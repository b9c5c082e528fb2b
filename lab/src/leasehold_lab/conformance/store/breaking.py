"""An operator can free a name from the holder that was seen, and from no other."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import MUTEX, SOON, UNFAIR, Arena, case, raised


@case(UNFAIR)
async def a_wrong_token_breaks_nothing(arena: Arena) -> None:
    """Only the holder that has the token is broken; what is not held cannot be."""
    client = arena.client()
    assert not await client.force_release(arena.name, 1)
    hold = await arena.holder()
    assert not await client.force_release(arena.name, hold.token + 1)
    assert not await client.force_release(arena.name, hold.token - 1)
    assert not await client.force_release("another", hold.token)
    hold.raise_if_lost()
    assert await arena.lock().acquire(blocking=False) is None
    assert await hold.release() is True
    assert not await client.force_release(arena.name, hold.token)


@case(MUTEX)
async def the_broken_holder_is_told(arena: Arena) -> None:
    """It hears of it at its next renewal; the next token is higher, and its late release hurts nobody."""
    client = arena.client()
    lease = arena.kept(0.9)
    hold = await arena.holder(lease=lease)
    assert await client.force_release(arena.name, hold.token)
    successor = await arena.holder()
    assert successor.token > hold.token
    until = arena.world.now() + lease
    while not hold.lost and arena.world.now() < until:
        await arena.world.sleep(0.02)
    assert hold.lost
    await raised(LeaseLost, hold.release())
    successor.raise_if_lost()
    assert await successor.release() is True


@case(UNFAIR)
async def a_break_hands_over(arena: Arena) -> None:
    """Who waits gets the name at once, not when the lease of the broken one would have ended."""
    client = arena.client()
    hold = await arena.holder(lease=60.0)
    waiter = arena.world.spawn(lambda: arena.holder())
    await arena.queued(client, 1)
    start = arena.world.now()
    assert await client.force_release(arena.name, hold.token)
    successor = await waiter.result()
    assert arena.world.now() - start < SOON
    assert successor.token > hold.token
    await successor.release()
    await raised(LeaseLost, hold.release())

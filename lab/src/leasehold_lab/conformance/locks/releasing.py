"""A release is for the one who acquired, happens once, and frees the name."""

from __future__ import annotations

from leasehold.errors import NotHeld
from leasehold_lab.conformance.case_context import ALL, MUTEX, UNFAIR, Arena, case, checked, held, raised


@case(UNFAIR)
async def a_release_frees_the_name(arena: Arena) -> None:
    """After `release` nobody holds, and the hold says so."""
    client = arena.client()
    hold = await arena.holder(client)
    hold.raise_if_lost()
    assert hold.name == arena.name
    assert hold.owner == client.owner
    assert 0 < hold.remaining <= 30
    assert not hold.lost
    assert await hold.release() is True
    assert hold.remaining == 0
    assert not hold.lost
    assert await client.inspect(arena.name) is None
    error = await raised(NotHeld, checked(hold))
    assert error.token == hold.token


@case(UNFAIR)
async def a_second_release_does_nothing(arena: Arena) -> None:
    """`Hold.release` is idempotent, and does not touch the next holder."""
    hold = await arena.holder()
    await hold.release()
    successor = await arena.holder()
    assert await hold.release() is True
    successor.raise_if_lost()
    assert await arena.lock().acquire(blocking=False) is None
    await successor.release()


@case(UNFAIR)
async def a_lock_releases_what_it_acquired(arena: Arena) -> None:
    """`Lock.release` releases the caller's hold; without one it raises `NotHeld`."""
    lock = arena.lock()
    hold = held(await lock.acquire())
    await lock.release()
    assert not await lock.locked()
    assert hold.remaining == 0
    error = await raised(NotHeld, lock.release())
    assert isinstance(error, RuntimeError)
    assert error.name == arena.name


@case(ALL)
async def a_stranger_cannot_release(arena: Arena) -> None:
    """Another thread or task that shares the lock object holds nothing, so it can release nothing."""
    lock = arena.lock()
    hold = held(await lock.acquire())
    error = await arena.world.spawn(lambda: raised(NotHeld, lock.release())).result()
    assert error.name == arena.name
    await raised(NotHeld, arena.lock().release())
    hold.raise_if_lost()
    await lock.release()


@case(UNFAIR)
async def a_hold_is_a_block(arena: Arena) -> None:
    """``with`` on a hold releases at its end, whatever the body raised; the body's error wins."""
    lock = arena.lock()
    async with held(await lock.acquire()) as hold:
        assert await lock.locked()
    assert not await lock.locked()

    async def fail() -> None:
        async with lock as inside:
            inside.raise_if_lost()
            raise KeyError("of the body")

    await raised(KeyError, fail())
    assert not await lock.locked()
    assert hold.remaining == 0


@case(MUTEX)
async def a_release_in_the_block_is_no_error(arena: Arena) -> None:
    """Who releases early ends the block as usual."""
    lock = arena.lock()
    async with lock as hold:
        await hold.release()
        assert not await lock.locked()
    assert not await lock.locked()


@case(MUTEX)
async def closing_a_client_releases(arena: Arena) -> None:
    """What a client still holds when it is closed is free at once, not at the end of the lease."""
    client = arena.client()
    hold = await arena.holder(client)
    await client.close()
    successor = await arena.holder()
    assert successor.token > hold.token
    await successor.release()

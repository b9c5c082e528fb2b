"""A release is for the one who acquired, happens once, and frees the name."""

from __future__ import annotations

from leasehold.errors import NotHeld
from leasehold_lab.conformance.case_context import ALL, MUTEX, UNFAIR, CaseContext, case, checked, held, raised


@case(UNFAIR)
async def a_release_frees_the_name(context: CaseContext) -> None:
    """After `release` nobody holds, and the hold says so."""
    client = context.client()
    hold = await context.holder(client)
    hold.raise_if_lost()
    assert hold.name == context.name
    assert hold.owner == client.owner
    assert 0 < hold.remaining <= 30
    assert not hold.lost
    assert await hold.release() is True
    assert hold.remaining == 0
    assert not hold.lost
    assert await client.inspect(context.name) is None
    error = await raised(NotHeld, checked(hold))
    assert error.token == hold.token


@case(UNFAIR)
async def a_second_release_does_nothing(context: CaseContext) -> None:
    """`Hold.release` is idempotent, and does not touch the next holder."""
    hold = await context.holder()
    await hold.release()
    successor = await context.holder()
    assert await hold.release() is True
    successor.raise_if_lost()
    assert await context.lock().acquire(blocking=False) is None
    await successor.release()


@case(UNFAIR)
async def a_lock_releases_what_it_acquired(context: CaseContext) -> None:
    """`Lock.release` releases the caller's hold; without one it raises `NotHeld`."""
    lock = context.lock()
    hold = held(await lock.acquire())
    await lock.release()
    assert not await lock.locked()
    assert hold.remaining == 0
    error = await raised(NotHeld, lock.release())
    assert isinstance(error, RuntimeError)
    assert error.name == context.name


@case(ALL)
async def a_stranger_cannot_release(context: CaseContext) -> None:
    """Another thread or task that shares the lock object holds nothing, so it can release nothing."""
    lock = context.lock()
    hold = held(await lock.acquire())
    error = await context.harness.spawn(lambda: raised(NotHeld, lock.release())).result()
    assert error.name == context.name
    await raised(NotHeld, context.lock().release())
    hold.raise_if_lost()
    await lock.release()


@case(UNFAIR)
async def a_hold_is_a_block(context: CaseContext) -> None:
    """``with`` on a hold releases at its end, whatever the body raised; the body's error wins."""
    lock = context.lock()
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
async def a_release_in_the_block_is_no_error(context: CaseContext) -> None:
    """Who releases early ends the block as usual."""
    lock = context.lock()
    async with lock as hold:
        await hold.release()
        assert not await lock.locked()
    assert not await lock.locked()


@case(MUTEX)
async def closing_a_client_releases(context: CaseContext) -> None:
    """What a client still holds when it is closed is free at once, not at the end of the lease."""
    client = context.client()
    hold = await context.holder(client)
    await client.close()
    successor = await context.holder()
    assert successor.token > hold.token
    await successor.release()

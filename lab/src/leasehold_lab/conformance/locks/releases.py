"""Only the holder can release; a release frees the name, once."""

from __future__ import annotations

from leasehold.errors import NotHeld
from leasehold_lab.conformance.case_context import ALL, MUTEX, UNFAIR, CaseContext, case, checked, held, raised


@case(UNFAIR)
async def a_release_frees_the_name(context: CaseContext) -> None:
    """After `release` the name is free, and the hold is not held."""
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
    """`Hold.release` is idempotent, and does not affect the next holder."""
    hold = await context.holder()
    await hold.release()
    successor = await context.holder()
    assert await hold.release() is True
    successor.raise_if_lost()
    assert await context.lock().acquire(blocking=False) is None
    await successor.release()


@case(UNFAIR)
async def lock_release_releases_the_hold_of_the_caller(context: CaseContext) -> None:
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
async def another_thread_or_task_cannot_release(context: CaseContext) -> None:
    """Another thread or task that shares the lock object has no hold, so `release` raises."""
    lock = context.lock()
    hold = held(await lock.acquire())
    error = await context.harness.spawn(lambda: raised(NotHeld, lock.release())).result()
    assert error.name == context.name
    await raised(NotHeld, context.lock().release())
    hold.raise_if_lost()
    await lock.release()


@case(UNFAIR)
async def a_hold_is_a_context_manager(context: CaseContext) -> None:
    """``with`` on a hold releases it at the end; an error of the body propagates."""
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
async def a_release_inside_the_block_is_no_error(context: CaseContext) -> None:
    """A block whose hold was released early ends without an error."""
    lock = context.lock()
    async with lock as hold:
        await hold.release()
        assert not await lock.locked()
    assert not await lock.locked()


@case(MUTEX)
async def closing_a_client_releases_its_locks(context: CaseContext) -> None:
    """The locks of a closed client are free at once, not at the end of their leases."""
    client = context.client()
    hold = await context.holder(client)
    await client.close()
    successor = await context.holder()
    assert successor.token > hold.token
    await successor.release()

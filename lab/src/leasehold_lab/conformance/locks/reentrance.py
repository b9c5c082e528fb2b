"""A re-entrant lock is its thread's or task's: it may enter again, nobody else may, and it leaves as often."""

from __future__ import annotations

from leasehold.errors import LeaseLost, NotHeld
from leasehold_lab.conformance.case_context import SOON, CaseContext, Variant, case, held, raised

BOTH = (Variant.RLOCK, Variant.FAIR_RLOCK, Variant.WRITER)


@case(BOTH)
async def it_is_entered_again_across_objects_and_functions(context: CaseContext) -> None:
    """All objects of one client with the same name are one lock; the store sees one hold."""
    client, watcher = context.client(), context.client()
    outer_lock, inner_lock = context.lock(client), context.lock(client)

    async def inner() -> int:
        async with inner_lock as hold, outer_lock as deeper:
            assert hold.token == deeper.token
            return hold.token

    async with outer_lock as hold:
        assert await inner() == hold.token
        assert await inner() == hold.token
        hold.raise_if_lost()
        info = await watcher.inspect(context.name)
        assert info is not None
        assert [who.token for who in info.holders] == [hold.token]
    assert await watcher.inspect(context.name) is None


@case(BOTH)
async def it_is_free_after_the_last_release(context: CaseContext) -> None:
    """One release too few keeps it, one too many is refused."""
    lock, rival = context.lock(), context.lock()
    for _ in range(3):
        held(await lock.acquire())
    for _ in range(2):
        await lock.release()
        assert await rival.acquire(blocking=False) is None
    await lock.release()
    await held(await rival.acquire(timeout=SOON)).release()
    await raised(NotHeld, lock.release())


@case(BOTH)
async def holds_may_end_in_any_order(context: CaseContext) -> None:
    """It is the number of holds that counts, not which of them ends first."""
    lock = context.lock()
    first, second = held(await lock.acquire()), held(await lock.acquire())
    assert await first.release() is True
    assert await first.release() is True
    second.raise_if_lost()
    assert await lock.locked()
    assert await second.release() is True
    assert not await lock.locked()


@case(BOTH)
async def another_thread_or_task_waits(context: CaseContext) -> None:
    """It belongs to who acquired it, even if another shares the object."""
    client = context.client()
    lock = context.lock(client)
    hold = held(await lock.acquire())
    assert await context.harness.spawn(lambda: lock.acquire(blocking=False)).result() is None
    assert await context.harness.spawn(lambda: lock.acquire(timeout=0.1)).result() is None
    await context.harness.spawn(lambda: raised(NotHeld, lock.release())).result()

    async def wait() -> int:
        async with lock as theirs:
            return theirs.token

    waiter = context.harness.spawn(wait)
    await context.queued(client, 1)
    assert not waiter.done()
    await hold.release()
    assert await waiter.result() > hold.token


@case(BOTH)
async def a_lost_lock_is_not_entered_again(context: CaseContext) -> None:
    """Who lost it is told at the next acquire, and can have it anew after that."""
    lock = context.lock(lease=context.short, renew=False)
    first = held(await lock.acquire())
    await context.harness.sleep(context.short + 0.1)
    await raised(LeaseLost, lock.acquire())
    await raised(LeaseLost, first.release())
    second = held(await lock.acquire(timeout=SOON))
    assert second.token > first.token
    await second.release()

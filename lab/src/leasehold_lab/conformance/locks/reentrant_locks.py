"""A re-entrant lock belongs to its thread or task, which may acquire it again and releases it as often."""

from __future__ import annotations

from leasehold.errors import LeaseLost, NotHeld
from leasehold_lab.conformance.case_context import SOON, CaseContext, Variant, case, held, raised

BOTH = (Variant.RLOCK, Variant.FAIR_RLOCK, Variant.WRITER)


@case(BOTH)
async def a_reentrant_lock_spans_objects_and_functions(context: CaseContext) -> None:
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
async def a_reentrant_lock_is_free_after_the_last_release(context: CaseContext) -> None:
    """One release too few keeps the lock; one too many raises."""
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
async def reentrant_holds_may_end_in_any_order(context: CaseContext) -> None:
    """The lock is free when all its holds have ended, in any order."""
    lock = context.lock()
    first, second = held(await lock.acquire()), held(await lock.acquire())
    assert await first.release() is True
    assert await first.release() is True
    second.raise_if_lost()
    assert await lock.locked()
    assert await second.release() is True
    assert not await lock.locked()


@case(BOTH)
async def another_thread_or_task_waits_for_a_reentrant_lock(context: CaseContext) -> None:
    """The lock belongs to the thread or task that acquired it, even if others share the object."""
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
async def a_lost_reentrant_lock_is_not_entered_again(context: CaseContext) -> None:
    """The next nested acquire raises; after that the lock can be acquired anew."""
    lock = context.lock(lease=context.short, renew=False)
    first = held(await lock.acquire())
    await context.harness.sleep(context.short + 0.1)
    await raised(LeaseLost, lock.acquire())
    await raised(LeaseLost, first.release())
    second = held(await lock.acquire(timeout=SOON))
    assert second.token > first.token
    await second.release()

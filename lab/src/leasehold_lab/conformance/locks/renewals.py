"""Holds of each kind are renewed as long as they are held, in any order of releases."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import EQUIVALENTS, SOON, CaseContext, Variant, case, held

NAME = "prices"
HOLDS = (Variant.LOCK, Variant.RLOCK, Variant.FAIR_RLOCK, *EQUIVALENTS)


@case((Variant.LOCK,), needs=("shared", "permits", "fair"))
async def a_holder_of_each_kind_is_renewed(context: CaseContext) -> None:
    """Readers, one of them upgradeable, a writer and permits hold for many times their lease, all at the same time."""
    lease, client = context.lasting, context.client()
    readers = [held(await context.client().rw_lock(NAME, lease=lease).reader().acquire(timeout=SOON)) for _ in range(3)]
    if context.promised.upgrades:
        readers.append(held(await client.rw_lock(NAME, lease=lease).upgradeable().acquire(timeout=SOON)))
    writer = held(await client.rw_lock("other", lease=lease).writer().acquire(timeout=SOON))
    permits = held(await client.semaphore("partner", 3, lease=lease).acquire(2, timeout=SOON))
    tokens = [hold.token for hold in readers]
    await context.harness.sleep(3 * lease)
    for hold in (*readers, writer, permits):
        hold.raise_if_lost()
    info = await client.inspect(NAME)
    assert info is not None
    assert sorted(holder.token or 0 for holder in info.holders) == sorted(tokens)
    for hold in (*readers, writer, permits):
        assert await hold.release()


@case((Variant.LOCK,), needs=("shared", "fair"))
async def a_writer_that_reads_may_release_in_any_order(context: CaseContext) -> None:
    """The remaining hold is renewed, and ends with its own release."""
    lease = context.lasting

    async def released_first(first: str) -> None:
        name = f"{NAME}, {first} first"
        lock, other = context.client().rw_lock(name, lease=lease), context.client().rw_lock(name, lease=lease)
        holds = {"writer": held(await lock.writer().acquire(timeout=SOON))}
        holds["reader"] = held(await lock.reader().acquire(timeout=SOON))
        await holds.pop(first).release()
        (left,) = holds.values()
        await context.harness.sleep(2 * lease)
        left.raise_if_lost()
        assert await other.writer().acquire(blocking=False) is None
        await left.release()
        await held(await other.writer().acquire(timeout=SOON)).release()

    await context.harness.gather(*map(released_first, ("writer", "reader")))


@case(HOLDS)
async def a_lock_outlives_the_task_or_thread_that_acquired_it(context: CaseContext) -> None:
    """A lease is renewed as long as its hold is referenced, whichever task or thread acquired it."""
    lock, rival = context.lock(lease=context.lasting), context.lock()
    hold = held(await context.harness.spawn(lambda: lock.acquire(timeout=SOON)).result())
    await context.harness.sleep(2 * context.lasting)
    hold.raise_if_lost()
    assert hold.held
    assert await rival.acquire(blocking=False) is None
    assert await hold.release()
    await held(await rival.acquire(timeout=SOON)).release()


@case((Variant.LOCK,), needs=("shared", "fair"))
async def nested_holds_outlive_the_task_or_thread_that_acquired_them(context: CaseContext) -> None:
    """A re-entrant lock and a reader that are held together are renewed, too."""
    lease, client, rival = context.lasting, context.client(), context.client()
    parts = [client.rlock("a", lease=lease), client.rw_lock(NAME, lease=lease).reader()]
    hold = held(await context.harness.spawn(lambda: client.multi_lock(parts).acquire(timeout=SOON)).result())
    await context.harness.sleep(2 * lease)
    hold.raise_if_lost()
    assert await rival.lock("a").acquire(blocking=False) is None
    assert await rival.rw_lock(NAME).writer().acquire(blocking=False) is None
    assert await hold.release()


@case(HOLDS)
async def close_notifies_holders_before_another_client_enters(context: CaseContext) -> None:
    """The holder may be another task or thread than the closing one; the lock is free when `close` returns."""
    client, rival, told = context.client(), context.lock(), list[LeaseLost]()
    hold = held(await context.lock(client).acquire())
    hold.on_lost(told.append)
    await context.harness.spawn(client.close).result()
    assert hold.lost
    assert [error.name for error in told] == [context.name]
    await held(await rival.acquire(timeout=SOON)).release()

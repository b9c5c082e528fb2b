"""Renewals: a holder of each kind is kept alive for as long as it lives, in whatever order it releases."""

from __future__ import annotations

from leasehold.errors import LeaseLost
from leasehold_lab.conformance.case_context import SOON, STAND_INS, CaseContext, Variant, case, held

NAME = "prices"
HOLDS = (Variant.LOCK, Variant.RLOCK, Variant.FAIR_RLOCK, *STAND_INS)


@case((Variant.LOCK,), needs=("shared", "permits"))
async def a_holder_of_each_kind_is_renewed(context: CaseContext) -> None:
    """Readers, an upgradeable one among them, a writer and permits hold for many times their lease, all at once."""
    lease, client = context.short, context.client()
    readers = [held(await context.client().rw_lock(NAME, lease=lease).reader().acquire(timeout=SOON)) for _ in range(3)]
    upgradeable = held(await client.rw_lock(NAME, lease=lease).upgradeable().acquire(timeout=SOON))
    writer = held(await client.rw_lock("other", lease=lease).writer().acquire(timeout=SOON))
    permits = held(await client.semaphore("partner", 3, lease=lease).acquire(2, timeout=SOON))
    tokens = [hold.token for hold in (*readers, upgradeable)]
    await context.harness.sleep(3 * lease)
    for hold in (*readers, upgradeable, writer, permits):
        hold.raise_if_lost()
    info = await client.inspect(NAME)
    assert info is not None
    assert sorted(holder.token or 0 for holder in info.holders) == sorted(tokens)
    for hold in (*readers, upgradeable, writer, permits):
        assert await hold.release()


@case((Variant.LOCK,), needs=("shared",))
async def what_is_left_is_renewed_in_whatever_order_one_releases(context: CaseContext) -> None:
    """One who writes and reads may release either first: the other is renewed on, and goes with its own release."""
    lease = context.short
    for first in ("writer", "reader"):
        lock, other = context.client().rw_lock(NAME, lease=lease), context.client().rw_lock(NAME, lease=lease)
        holds = {"writer": held(await lock.writer().acquire(timeout=SOON))}
        holds["reader"] = held(await lock.reader().acquire(timeout=SOON))
        await holds.pop(first).release()
        (left,) = holds.values()
        await context.harness.sleep(2.5 * lease)
        left.raise_if_lost()
        assert await other.writer().acquire(blocking=False) is None
        await left.release()
        await held(await other.writer().acquire(timeout=SOON)).release()


@case(HOLDS)
async def it_is_held_on_when_the_task_or_thread_that_acquired_it_has_ended(context: CaseContext) -> None:
    """A lease lives as long as its hold can be reached, whoever acquired it."""
    lock, rival = context.lock(lease=context.short), context.lock()
    hold = held(await context.harness.spawn(lambda: lock.acquire(timeout=SOON)).result())
    await context.harness.sleep(3 * context.short)
    hold.raise_if_lost()
    assert hold.held
    assert await rival.acquire(blocking=False) is None
    assert await hold.release()
    await held(await rival.acquire(timeout=SOON)).release()


@case((Variant.LOCK,), needs=("shared",))
async def several_are_held_on_when_the_task_or_thread_that_acquired_them_has_ended(context: CaseContext) -> None:
    """So do a re-entrant lock and a reader that are held together."""
    lease, client, rival = context.short, context.client(), context.client()
    parts = [client.rlock("a", lease=lease), client.rw_lock(NAME, lease=lease).reader()]
    hold = held(await context.harness.spawn(lambda: client.multi_lock(parts).acquire(timeout=SOON)).result())
    await context.harness.sleep(3 * lease)
    hold.raise_if_lost()
    assert await rival.lock("a").acquire(blocking=False) is None
    assert await rival.rw_lock(NAME).writer().acquire(blocking=False) is None
    assert await hold.release()


@case(HOLDS)
async def a_client_that_is_closed_tells_of_a_loss_before_another_enters(context: CaseContext) -> None:
    """The holder may be another task or thread than the one that closes; the lock is free when the close returns."""
    client, rival, told = context.client(), context.lock(), list[LeaseLost]()
    hold = held(await context.lock(client).acquire())
    hold.on_lost(told.append)
    await context.harness.spawn(client.close).result()
    assert hold.lost
    assert [error.name for error in told] == [context.name]
    await held(await rival.acquire(timeout=SOON)).release()

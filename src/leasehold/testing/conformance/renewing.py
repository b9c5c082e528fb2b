"""Renewals: a holder of each kind is kept alive for as long as it lives, in whatever order it releases."""

from __future__ import annotations

from leasehold.testing.conformance.arena import SOON, Arena, Variant, case, held

NAME = "prices"


@case((Variant.LOCK,), needs=("shared", "permits"))
async def a_holder_of_each_kind_is_renewed(arena: Arena) -> None:
    """Readers, an upgradeable one among them, a writer and permits hold for many times their lease, all at once."""
    lease, client = arena.short, arena.client()
    readers = [held(await arena.client().rw_lock(NAME, lease=lease).reader().acquire(timeout=SOON)) for _ in range(3)]
    upgradeable = held(await client.rw_lock(NAME, lease=lease).upgradeable().acquire(timeout=SOON))
    writer = held(await client.rw_lock("other", lease=lease).writer().acquire(timeout=SOON))
    permits = held(await client.semaphore("partner", 3, lease=lease).acquire(2, timeout=SOON))
    tokens = [hold.token for hold in (*readers, upgradeable)]
    await arena.world.sleep(3 * lease)
    for hold in (*readers, upgradeable, writer, permits):
        hold.check()
    info = await client.inspect(NAME)
    assert info is not None
    assert sorted(holder.token or 0 for holder in info.holders) == sorted(tokens)
    for hold in (*readers, upgradeable, writer, permits):
        assert await hold.release()


@case((Variant.LOCK,), needs=("shared",))
async def what_is_left_is_renewed_in_whatever_order_one_releases(arena: Arena) -> None:
    """One who writes and reads may release either first: the other is renewed on, and goes with its own release."""
    lease = arena.short
    for first in ("writer", "reader"):
        lock, other = arena.client().rw_lock(NAME, lease=lease), arena.client().rw_lock(NAME, lease=lease)
        holds = {"writer": held(await lock.writer().acquire(timeout=SOON))}
        holds["reader"] = held(await lock.reader().acquire(timeout=SOON))
        await holds.pop(first).release()
        (left,) = holds.values()
        await arena.world.sleep(2.5 * lease)
        left.check()
        assert await other.writer().acquire(blocking=False) is None
        await left.release()
        await held(await other.writer().acquire(timeout=SOON)).release()

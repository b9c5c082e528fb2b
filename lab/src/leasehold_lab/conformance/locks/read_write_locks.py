"""Readers hold together, a writer alone; an upgrade and a downgrade leave no gap."""

from __future__ import annotations

from functools import partial
from typing import Any

from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, NameInUse, NotHeld
from leasehold.primitives.locks.rw_lock import AsyncRWLock, AsyncRWLockSide
from leasehold_lab.conformance.case_context import GIVES_UP, NAME, SHORT, SOON, CaseContext, case, held, raised
from leasehold_lab.runtimes.harnesses import Job

RW = ("shared", "fair")
UPGRADES = (*RW, "upgrades")
WRITERS, READERS, ROUNDS = 2, 4, 5


def rw(context: CaseContext, client: AsyncClient | None = None, **options: Any) -> AsyncRWLock:
    """Make a read-write lock of the given client or of a new one."""
    return (context.client() if client is None else client).rw_lock(NAME, **options)


def writing(context: CaseContext, lock: AsyncRWLock) -> list[AsyncRWLockSide]:
    """Return the sides that write: the writer's, and that of the reader that may become one, if the store has it."""
    return [lock.writer(), *([lock.upgradeable()] if context.promised.upgrades else [])]


@case(needs=RW)
async def readers_hold_at_the_same_time(context: CaseContext) -> None:
    """Any number of readers hold at the same time, each with its own token and lease."""
    locks = [rw(context) for _ in range(READERS)]
    holds = [held(await lock.reader().acquire(blocking=False)) for lock in locks]
    assert len({hold.token for hold in holds}) == READERS
    for lock in locks:
        assert await lock.writer().locked()
        assert not await lock.reader().locked()
    assert await rw(context).writer().acquire(blocking=False) is None
    for hold in holds:
        hold.raise_if_lost()
        assert await hold.release() is True
    assert not await locks[0].writer().locked()


@case(needs=RW)
async def a_writer_holds_alone(context: CaseContext) -> None:
    """While a writer holds, no other client reads or writes; its token is above those of all earlier readers."""
    reader = held(await rw(context).reader().acquire())
    other = held(await rw(context).reader().acquire())
    await reader.release()
    await other.release()
    writer = held(await rw(context).writer().acquire(blocking=False))
    assert writer.token > max(reader.token, other.token)
    stranger = rw(context)
    for side in (stranger.reader(), *writing(context, stranger)):
        assert await side.locked()
        assert await side.acquire(blocking=False) is None
    await writer.release()
    assert held(await stranger.reader().acquire(blocking=False)).token > writer.token


@case(needs=RW)
async def no_reader_sees_a_partial_change(context: CaseContext) -> None:
    """Writers change two values one after the other; readers see both changes or neither."""
    harness, pair, tokens = context.harness, [0, 0], list[int]()

    async def write() -> None:
        side = rw(context).writer()
        for _ in range(ROUNDS):
            async with side as hold:
                tokens.append(hold.token)
                pair[0] += 1
                await harness.sleep(0.001)
                pair[1] += 1

    async def read() -> None:
        side = rw(context).reader()
        for _ in range(ROUNDS):
            async with side:
                seen = pair[0]
                await harness.sleep(0.001)
                assert seen == pair[1] == pair[0]

    for job in [harness.spawn(work) for work in (write, read) for _ in range(WRITERS)]:
        await job.result()
    assert pair == [WRITERS * ROUNDS] * 2
    assert tokens == sorted(set(tokens))


@case(needs=RW)
async def readers_and_writers_enter_in_order_of_arrival(context: CaseContext) -> None:
    """Waiters enter in turn, adjacent readers at the same time; neither kind starves."""
    client, entered, inside = context.client(), list[str](), 0
    first = held(await rw(context, client).writer().acquire())

    async def wait(what: str) -> None:
        nonlocal inside
        lock = rw(context)
        async with lock.writer() if what[0] == "w" else lock.reader():
            entered.append(what)
            if what[0] == "r":
                inside += 1
                until = context.harness.now() + SOON
                while inside % 2 and context.harness.now() < until:
                    await context.harness.sleep(0.002)
                assert inside % 2 == 0, "the two readers must be inside together"

    jobs = list[Job[None]]()
    for what in ("r1", "r2", "w1", "r3", "r4", "w2"):
        jobs.append(context.harness.spawn(partial(wait, what)))
        await context.queued(client, len(jobs))
    await first.release()
    for job in jobs:
        await job.result()
    in_turn = sorted(entered[:2]), entered[2], sorted(entered[3:5]), entered[5]
    assert in_turn == (["r1", "r2"], "w1", ["r3", "r4"], "w2")


@case(needs=RW)
async def a_reader_does_not_overtake_a_waiting_writer(context: CaseContext) -> None:
    """By default a later reader waits behind the writer; with ``fair=False`` it enters."""
    client = context.client()
    reader = held(await rw(context, client).reader().acquire())
    writer = context.harness.spawn(lambda: rw(context).writer().acquire())
    await context.queued(client, 1)
    assert await rw(context).reader().acquire(blocking=False) is None
    passing = held(await rw(context, fair=False).reader().acquire(blocking=False))
    await passing.release()
    await reader.release()
    await held(await writer.result()).release()


@case(needs=RW)
async def readers_enter_when_a_waiting_writer_gives_up(context: CaseContext) -> None:
    """Readers that waited only for a waiting writer enter at once when it gives up."""
    client = context.client()
    first = held(await rw(context, client).reader().acquire())
    writer = context.harness.spawn(lambda: rw(context).writer().acquire(timeout=GIVES_UP))
    await context.queued(client, 1)
    reader = context.harness.spawn(lambda: rw(context).reader().acquire())
    await context.queued(client, 2)
    start = context.harness.now()
    assert await writer.result() is None
    await held(await reader.result()).release()
    context.ended_within(start, GIVES_UP)
    await first.release()


@case(needs=RW)
async def a_nested_reader_never_waits_for_a_writer(context: CaseContext) -> None:
    """Nested reading is one hold, even if a writer waits; it ends at the last release."""
    client = context.client()
    lock = rw(context, client)
    outer = held(await lock.reader().acquire())
    writer = context.harness.spawn(lambda: rw(context).writer().acquire())
    await context.queued(client, 1)
    inner = held(await rw(context, client).reader().acquire(timeout=SOON))
    assert inner.token == outer.token
    await lock.reader().release()
    outer.raise_if_lost()
    assert not writer.done()
    await lock.reader().release()
    await held(await writer.result()).release()
    await raised(NotHeld, lock.reader().release())


@case(needs=RW)
async def a_writer_downgrades_without_a_gap(context: CaseContext) -> None:
    """A writer may also read; releasing the writer first keeps the reader, and no other writer enters between."""
    client = context.client()
    lock = rw(context, client)
    writer = held(await lock.writer().acquire())
    waiting = context.harness.spawn(lambda: rw(context).writer().acquire())
    await context.queued(client, 1)
    reader = held(await lock.reader().acquire(timeout=SOON))
    assert reader.token > writer.token
    await writer.release()
    reader.raise_if_lost()
    await context.harness.sleep(0.05)
    assert not waiting.done()
    await reader.release()
    after = held(await waiting.result())
    assert after.token > reader.token
    await after.release()


@case(needs=UPGRADES)
async def one_upgradeable_reader_coexists_with_readers(context: CaseContext) -> None:
    """It reads alongside plain readers; a second one waits, and plain readers do not wait for it."""
    reader = held(await rw(context).reader().acquire(blocking=False))
    first = held(await rw(context).upgradeable().acquire(blocking=False))
    later = held(await rw(context).reader().acquire(blocking=False))
    client = context.client()
    second = context.harness.spawn(lambda: rw(context, client).upgradeable().acquire())
    await context.queued(client, 1)
    await held(await rw(context).reader().acquire(blocking=False)).release()
    await first.release()
    assert await held(await second.result()).release()
    await reader.release()
    await later.release()


@case(needs=UPGRADES)
async def an_upgrade_waits_only_for_readers(context: CaseContext) -> None:
    """It becomes the writer when the readers have left, before earlier waiting writers, and can downgrade."""
    client = context.client()
    reader = held(await rw(context).reader().acquire())
    hold = held(await rw(context, client).upgradeable().acquire())
    ahead = context.harness.spawn(lambda: rw(context).writer().acquire())
    await context.queued(client, 1)
    assert await hold.upgrade(timeout=0) is None
    assert await hold.upgrade(timeout=0.1) is None
    hold.raise_if_lost()
    upgrade = context.harness.spawn(lambda: hold.upgrade())
    await context.queued(client, 2)
    assert await rw(context).reader().acquire(blocking=False) is None
    await reader.release()
    writer = held(await upgrade.result())
    assert writer.token > hold.token
    assert not ahead.done()
    assert await rw(context).reader().locked()
    await writer.release()
    hold.raise_if_lost()
    assert not ahead.done()
    await hold.release()
    await held(await ahead.result()).release()


@case(needs=UPGRADES)
async def later_readers_do_not_overtake_a_waiting_upgrade(context: CaseContext) -> None:
    """Otherwise a constant stream of readers would block it for ever."""
    client = context.client()
    first = held(await rw(context).reader().acquire())
    hold = held(await rw(context, client).upgradeable().acquire())
    upgrade = context.harness.spawn(lambda: hold.upgrade())
    await context.queued(client, 1)
    assert await rw(context).reader().acquire(blocking=False) is None
    later = context.harness.spawn(lambda: rw(context).reader().acquire())
    await context.queued(client, 2)
    await first.release()
    writer = held(await upgrade.result())
    assert not later.done()
    await writer.release()
    await held(await later.result()).release()
    await hold.release()


@case(needs=UPGRADES)
async def upgradeable_readers_do_not_deadlock(context: CaseContext) -> None:
    """Clients that read, decide and write under an upgradeable reader lose no update, and all make progress."""
    harness, count = context.harness, 0

    async def work() -> None:
        nonlocal count
        lock = rw(context)
        for _ in range(ROUNDS):
            async with lock.upgradeable() as hold:
                seen = count
                async with lock.reader():
                    await harness.sleep(0.001)
                async with held(await hold.upgrade()) as writing:
                    assert writing.token > hold.token
                    count = seen + 1

    for job in [harness.spawn(work) for _ in range(READERS)]:
        await job.result()
    assert count == READERS * ROUNDS


@case(needs=RW)
async def a_plain_reader_cannot_become_the_writer(context: CaseContext) -> None:
    """The request raises, since it could wait for ever; the reader's hold continues."""
    lock = rw(context)
    async with lock.reader() as hold:
        for side in writing(context, lock):
            await raised(RuntimeError, side.acquire(timeout=0))
        hold.raise_if_lost()
    await held(await lock.writer().acquire(blocking=False)).release()


@case(needs=RW)
async def a_dead_reader_blocks_a_writer_for_one_lease(context: CaseContext) -> None:
    """Each reader has its own lease: one that is not renewed expires, whatever the others do."""
    alive = held(await rw(context, lease=context.lasting).reader().acquire())
    dead = held(await rw(context, lease=context.short, renew=False).reader().acquire())
    start = context.harness.now()
    await context.harness.sleep(context.short / 2)
    await alive.release()
    writer = held(await rw(context).writer().acquire(timeout=SOON))
    context.ended_within(start, context.expired_after(SHORT))
    await raised(LeaseLost, dead.release())
    writer.raise_if_lost()
    await writer.release()


@case(needs=UPGRADES)
async def a_lost_upgradeable_reader_cannot_become_the_writer(context: CaseContext) -> None:
    """The upgrade raises: another client may have written since it read."""
    hold = held(await rw(context, lease=context.short, renew=False).upgradeable().acquire())
    reader = held(await rw(context).reader().acquire())
    await raised(LeaseLost, hold.upgrade(timeout=context.short * 3))
    await raised(LeaseLost, hold.upgrade(timeout=0))
    await raised(LeaseLost, hold.release())
    await reader.release()
    await held(await rw(context).writer().acquire(timeout=SOON)).release()


@case(needs=UPGRADES)
async def a_forgotten_upgradeable_reader_cannot_become_the_writer(context: CaseContext) -> None:
    """If its entry has vanished, the upgrade raises before any renewal has failed: another client has written."""
    operator = context.client()
    for by_upgrade in (True, False):
        lock = rw(context)
        hold = held(await lock.upgradeable().acquire())
        assert await operator.force_release(NAME, hold.token)
        await held(await rw(context).writer().acquire(timeout=SOON)).release()
        await raised(LeaseLost, hold.upgrade(SOON) if by_upgrade else lock.writer().acquire(timeout=SOON))
        await raised(LeaseLost, hold.release())
        await held(await rw(context).writer().acquire(timeout=SOON)).release()


@case(needs=UPGRADES)
async def an_upgradeable_reader_that_is_forgotten_while_it_waits_does_not_write(context: CaseContext) -> None:
    """If its entry vanishes during the upgrade, the writer ahead may be first, and then the upgrade raises."""
    client = context.client()
    reader = held(await rw(context).reader().acquire())
    hold = held(await rw(context, client).upgradeable().acquire())
    writer = context.harness.spawn(lambda: rw(context).writer().acquire(timeout=SOON))
    await context.queued(client, 1)
    upgrade = context.harness.spawn(lambda: raised(LeaseLost, hold.upgrade(SOON)))
    await context.queued(client, 2)
    assert await client.force_release(NAME, hold.token)
    await reader.release()
    await held(await writer.result()).release()
    await upgrade.result()
    await raised(LeaseLost, hold.release())
    await held(await rw(context).writer().acquire(timeout=SOON)).release()


@case(needs=RW)
async def a_read_write_lock_refuses_other_kinds_while_in_use(context: CaseContext) -> None:
    """A name in use as a read-write lock refuses other kinds until it is free."""
    client = context.client()
    hold = held(await rw(context).reader().acquire())
    error = await raised(NameInUse, client.lock(NAME).acquire(timeout=1))
    assert error.name == NAME
    await hold.release()
    async with client.lock(NAME):
        await raised(NameInUse, rw(context).reader().acquire(timeout=1))

"""At most one client holds, each with a higher token than the one before; a failed acquire returns in time."""

from __future__ import annotations

from leasehold.errors import AcquireTimeout
from leasehold_lab.conformance.case_context import ALL, NOISE, SOON, CaseContext, case, held, raised

JOBS = 4
ROUNDS = 6


@case(ALL)
async def no_update_under_a_lock_is_lost(context: CaseContext) -> None:
    """Several clients read, wait and write back: no update is lost, and no two are inside at once."""
    harness, count, inside, tokens = context.harness, 0, 0, list[int]()

    async def work() -> None:
        nonlocal count, inside
        lock = context.lock()
        for _ in range(ROUNDS):
            async with lock as hold:
                inside += 1
                assert inside == 1
                tokens.append(hold.token)
                seen = count
                await harness.sleep(0.001)
                count = seen + 1
                inside -= 1

    for job in [harness.spawn(work) for _ in range(JOBS)]:
        await job.result()
    assert count == JOBS * ROUNDS
    assert tokens == sorted(set(tokens))


@case(ALL)
async def threads_and_tasks_may_share_a_lock_object(context: CaseContext) -> None:
    """Threads or tasks that share one lock object exclude each other."""
    harness, lock, inside = context.harness, context.lock(), 0

    async def work() -> None:
        nonlocal inside
        for _ in range(ROUNDS):
            async with lock:
                inside += 1
                assert inside == 1
                await harness.sleep(0.001)
                inside -= 1

    for job in [harness.spawn(work) for _ in range(JOBS)]:
        await job.result()
    assert not await lock.locked()


@case(ALL)
async def tokens_increase(context: CaseContext) -> None:
    """Each hold has a higher token than the hold before, whichever client acquires."""
    locks, last = [context.lock(), context.lock()], 0
    for turn in range(6):
        hold = held(await locks[turn % 2].acquire(timeout=SOON))
        assert isinstance(hold.token, int)
        assert hold.token > last
        last = hold.token
        await hold.release()


@case(ALL)
async def a_try_does_not_wait(context: CaseContext) -> None:
    """A non-blocking acquire returns None at once if the name is held, and a hold if it is free."""
    client, rival = context.client(), context.lock()
    for blocking, timeout in ((False, None), (True, 0)):
        hold = await context.holder(client)
        start = context.harness.now()
        assert await rival.acquire(blocking, timeout) is None
        context.ended_within(start, 0.0)
        info = await client.inspect(context.name)
        assert info is not None
        assert info.waiters == ()
        await hold.release()
        await held(await rival.acquire(blocking, timeout)).release()


@case(ALL)
async def an_acquire_returns_at_its_timeout_and_leaves_no_queue_entry(context: CaseContext) -> None:
    """`acquire` returns None at its timeout, and leaves no queue entry."""
    client = context.client()
    hold = await context.holder(client)
    start = context.harness.now()
    assert await context.lock().acquire(timeout=0.25) is None
    assert context.harness.now() - start >= 0.25
    context.ended_within(start, 0.25)
    info = await client.inspect(context.name)
    assert info is not None
    assert info.waiters == ()
    await hold.release()
    assert await client.inspect(context.name) is None


@case(ALL)
async def with_raises_instead_of_running_the_block(context: CaseContext) -> None:
    """``with`` raises `AcquireTimeout` at the timeout, with the name, the holder and the time waited."""
    mine, other = context.client(), context.client()
    hold = await context.holder(mine)
    ran = False

    async def work() -> None:
        nonlocal ran
        async with context.lock(other, timeout=0.2):
            ran = True

    start = context.harness.now()
    error = await raised(AcquireTimeout, work())
    assert not ran
    assert isinstance(error, TimeoutError)
    assert (error.name, error.owner, error.held_by) == (context.name, other.owner, mine.owner)
    assert error.waited is not None
    assert 0.2 <= error.waited < 0.2 + NOISE + context.late_since(start)
    await hold.release()


@case(ALL)
async def locked_returns_whether_anyone_holds_the_name(context: CaseContext) -> None:
    """`locked` is about the name, not about the lock object."""
    lock, other = context.lock(), context.lock()
    assert not await other.locked()
    async with lock:
        assert await lock.locked()
        assert await other.locked()
    assert not await lock.locked()
    assert not await other.locked()

"""A multi-lock holds all its members or none, does not deadlock, and is lost when one member is lost."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from leasehold.client import AsyncClient
from leasehold.errors import AcquireTimeout, LeaseLost, NameInUse, NotHeld
from leasehold.primitives.locks.lock import AsyncMutex
from leasehold.primitives.locks.multi_lock import AsyncMultiLock
from leasehold_lab.conformance.case_context import NOISE, SHORT, SOON, CaseContext, case, held, raised
from leasehold_lab.runtimes.harnesses import Job

NAMES: tuple[str, ...] = ("a", "b", "c")
JOBS, ROUNDS = 4, 5


def multi(context: CaseContext, *names: Any, client: AsyncClient | None = None, **options: Any) -> AsyncMultiLock:
    """Make a multi-lock of the given client or of a new one."""
    return (context.client() if client is None else client).multi_lock(names or NAMES, **options)


async def names_in_use(client: AsyncClient) -> list[str]:
    """Return the names with holders or waiters."""
    return [info.name for info in await client.holds()]


@case()
async def a_multi_lock_holds_and_releases_all_members(context: CaseContext) -> None:
    """Inside the block each name is held, with its own token; afterwards none is."""
    client = context.client()
    async with multi(context, "c", "a", "b") as hold:
        assert hold.names == NAMES
        assert await names_in_use(client) == list(NAMES)
        for info in await client.holds():
            assert info.holders[0].token == hold.tokens[info.name]
            assert await client.lock(info.name).acquire(blocking=False) is None
        assert 0 < hold.remaining <= 30
        assert not hold.lost
        hold.raise_if_lost()
        await hold.renew()
    assert await names_in_use(client) == []
    assert not hold.lost
    assert hold.remaining == 0
    assert await hold.release()
    await raised(NotHeld, _check(hold))


@case()
async def a_try_of_a_multi_lock_takes_all_or_none(context: CaseContext) -> None:
    """If one member is held, a try returns None, and holds no other member."""
    client = context.client()
    for taken in NAMES:
        async with client.lock(taken):
            for blocking, timeout in ((False, None), (True, 0)):
                start = context.harness.now()
                assert await multi(context).acquire(blocking, timeout) is None
                context.ended_within(start, 0.0)
                info = await client.inspect(taken)
                assert info is not None
                assert info.waiters == ()
                assert await names_in_use(client) == [taken]
    await held(await multi(context).acquire(blocking=False)).release()


@case()
async def a_multi_lock_has_one_timeout(context: CaseContext) -> None:
    """The timeout covers all waits together; after it no member is held and no waiter is left."""
    client = context.client()
    late = await context.client().lock("b").acquire()
    async with client.lock("a") as early:

        async def free_the_first() -> None:
            await context.harness.sleep(0.3)
            await early.release()

        job = context.harness.spawn(free_the_first)
        start = context.harness.now()
        error = await raised(AcquireTimeout, multi(context, timeout=0.6).__aenter__())
        assert context.harness.now() - start >= 0.6
        context.ended_within(start, 0.6)
        assert error.waited is not None
        assert 0.6 <= error.waited < 0.6 + NOISE + context.late_since(start)
        assert error.name == "a + b + c"
        assert error.held_by is not None
        await job.result()
    info = await client.inspect("b")
    assert info is not None
    assert info.waiters == ()
    assert await names_in_use(client) == ["b"]
    await held(late).release()


@case()
async def a_multi_lock_waits_for_its_last_member(context: CaseContext) -> None:
    """It is acquired as soon as its last member is free; no client overtakes it at the members that it holds."""
    client = context.client()
    taken = held(await client.lock("b").acquire())
    job = context.harness.spawn(lambda: multi(context).acquire(timeout=SOON))
    await context.queued(client, 1, "b")
    assert await client.lock("a").acquire(blocking=False) is None
    assert await client.inspect("c") is None
    await taken.release()
    hold = held(await job.result())
    assert hold.names == NAMES
    await hold.release()
    assert await names_in_use(client) == []


@case()
async def multi_locks_in_opposite_orders_do_not_deadlock(context: CaseContext) -> None:
    """Clients that name the same locks in any order all make progress, and no two are inside at once."""
    harness, inside, done = context.harness, set[str](), 0
    chance = random.Random(7)

    async def work(lists: list[list[str]]) -> None:
        nonlocal done
        client = context.client()
        for names in lists:
            async with client.multi_lock(names, timeout=60):
                assert not inside & set(names)
                inside.update(names)
                await harness.sleep(0.001)
                inside.difference_update(names)
                done += 1

    jobs = list[Job[None]]()
    for number in range(JOBS):
        lists = [chance.sample(NAMES, chance.randint(2, 3)) for _ in range(ROUNDS)]
        jobs.append(harness.spawn(partial(work, [names[:: 1 if number % 2 else -1] for names in lists])))
    for job in jobs:
        await job.result()
    assert done == JOBS * ROUNDS
    assert await names_in_use(context.client()) == []


@case()
async def a_repeated_member_is_locked_once(context: CaseContext) -> None:
    """A repeated name is the same lock; two different uses of one name, or no names, raise an error."""
    client = context.client()
    async with client.multi_lock(["a", "b", "a", client.lock("b")]) as hold:
        assert hold.names == ("a", "b")
    other = context.client()
    for twice in (["a", client.rlock("a")], ["a", other.lock("a")], []):
        await raised(ValueError, _make(client, twice))
    for wrong in ("abc", [7], [None], 7):
        await raised(TypeError, _make(client, wrong))


@case()
async def a_multi_lock_may_span_clients(context: CaseContext) -> None:
    """Locks of other clients, in other namespaces, may be members."""
    one, two = context.client(), context.client(namespace=context.namespace + "-two")
    async with one.multi_lock(["b", two.lock("a"), two.lock("c")]) as hold:
        assert hold.names == NAMES
        assert await names_in_use(one) == ["b"]
        assert await names_in_use(two) == ["a", "c"]
        assert await two.multi_lock(["z", "a"]).acquire(blocking=False) is None
    assert await names_in_use(one) + await names_in_use(two) == []


@case(needs=("shared", "permits", "fair"))
async def a_multi_lock_may_contain_all_kinds(context: CaseContext) -> None:
    """Readers, permits and re-entrant locks may be members, each with its own rules."""
    client, other = context.client(), context.client()
    lock = client.multi_lock(
        ["d", client.rw_lock("a").reader(), client.semaphore("b", 3).permits(2), client.rlock("c")], timeout=SOON
    )
    async with client.rlock("c"), lock as hold:
        assert hold.names == ("a", "b", "c", "d")
        async with other.rw_lock("a").reader(), other.semaphore("b", 3):
            assert await other.semaphore("b", 3).available() == 0
        assert await other.rw_lock("a").writer().acquire(blocking=False) is None
        assert await other.lock("c").acquire(blocking=False) is None
    assert await names_in_use(client) == []
    async with other.semaphore("b", 3).permits(2):
        assert await lock.acquire(blocking=False) is None
        assert await names_in_use(client) == ["b"]


@case(needs=("shared", "fair"))
async def a_multi_lock_releases_all_when_one_name_is_in_use(context: CaseContext) -> None:
    """A name in use as another kind raises an error, and then no member is held."""
    client = context.client()
    async with client.rw_lock("b").reader():
        for timeout in (0, 1):
            error = await raised(NameInUse, multi(context).acquire(timeout=timeout))
            assert error.name == "b"
            assert await names_in_use(client) == ["b"]
    assert await names_in_use(client) == []


@case()
async def losing_one_member_loses_the_multi_lock(context: CaseContext) -> None:
    """When one lease is lost, the holder is notified, and the other members are released at the end of the block."""
    client, told = context.client(), list[str | None]()

    async def work() -> None:
        async with multi(context, lease=context.lasting) as hold:
            hold.on_lost(lambda error: told.append(error.name))
            info = await client.inspect("b")
            assert info is not None
            assert info.holders[0].token is not None
            assert await client.force_release("b", info.holders[0].token)
            until = context.harness.now() + SOON
            while context.harness.now() < until:
                hold.raise_if_lost()
                await context.harness.sleep(0.01)

    error = await raised(LeaseLost, work())
    assert error.name == "b"
    until = context.harness.now() + SOON
    while not told and context.harness.now() < until:  # another thread may call it
        await context.harness.sleep(0.01)
    assert told == ["b"]
    assert await names_in_use(client) == []


@case()
async def a_fixed_lease_of_a_multi_lock_begins_when_all_are_held(context: CaseContext) -> None:
    """With ``renew=False`` or ``max_hold`` early members are renewed during the wait; then all get the full lease.

    So it is with members that count their holds themselves, too.
    """
    client, lease = context.client(), context.lasting
    early: list[AsyncMutex] = [client.lock("a"), client.rlock("b", lease=lease, renew=False)]
    if context.promised.shared:
        capped = client.rw_lock("bb", fair=False, lease=lease, max_hold=SHORT / 4)
        early += [capped.writer()]
    other = held(await client.lock("other").acquire())  # its renewals must not lengthen the fixed leases
    taken = held(await client.lock("c").acquire())
    lock = multi(context, "a", *early[1:], "c", client=client, lease=lease, renew=False)
    job = context.harness.spawn(lambda: lock.acquire(timeout=SOON + 2 * lease))
    await context.queued(client, 1, "c")
    await context.harness.sleep(2 * lease)
    assert not job.done()
    for member in early:
        assert await member.acquire(blocking=False) is None
    await taken.release()
    hold = held(await job.result())
    assert hold.remaining > lease / 4
    start = context.harness.now()
    for member in early:
        await held(await member.acquire(timeout=SOON + lease)).release()
    context.ended_within(start, context.expired_after(lease) + SHORT / 4)
    assert hold.lost
    await raised(LeaseLost, hold.release())
    assert await names_in_use(client) == ["other"]
    await other.release()


@case()
async def a_dead_holder_of_a_multi_lock_blocks_for_one_lease(context: CaseContext) -> None:
    """Members that are not renewed are free after their leases."""
    before = context.harness.now()
    hold = held(await multi(context, lease=context.at_least_shortest(SHORT), renew=False).acquire())
    start = context.harness.now()
    after = held(await multi(context, "c", "b", "a").acquire(timeout=SOON))
    assert context.at_least_shortest(SHORT) * 0.9 < context.harness.now() - before
    context.ended_within(start, context.expired_after(SHORT))
    assert all(after.tokens[name] > hold.tokens[name] for name in NAMES)
    await raised(LeaseLost, hold.release())
    after.raise_if_lost()
    await after.release()


async def _check(hold: Any) -> None:
    hold.raise_if_lost()


async def _make(client: AsyncClient, locks: Any) -> object:
    return client.multi_lock(locks)

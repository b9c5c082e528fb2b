"""Barriers: all members pass together; a member that dies, times out or fails breaks the barrier, or is dropped."""

from __future__ import annotations

from functools import partial
from typing import Any

from leasehold.errors import AcquireTimeout, BrokenBarrier, NameInUse, NotHeld
from leasehold.primitives.coordination.barrier import AsyncBarrier
from leasehold_lab.conformance.case_context import SOON, CaseContext, Variant, case, raised

NAME = "phase {1}"
PARTIES = 4
NEEDS = ("cells", "permits")


def barrier(context: CaseContext, parties: int = PARTIES, **options: Any) -> AsyncBarrier:
    """Make a barrier of a new client, with a lease that a case can wait for."""
    given: dict[str, Any] = {"timeout": 4 * SOON, **options}
    return context.client().barrier(NAME, parties, **given)


async def waiting(context: CaseContext, count: int, **options: Any) -> None:
    """Wait until ``count`` members wait."""
    seen, until = barrier(context, **options), context.harness.now() + SOON
    while await seen.n_waiting() != count:
        assert context.harness.now() < until, f"{count} members expected, there are {await seen.n_waiting()}"
        await context.harness.sleep(0.005)


@case((Variant.LOCK,), needs=NEEDS)
async def a_barrier_releases_all_members_each_round(context: CaseContext) -> None:
    """No member enters a round before all have reached it; each round gives each member another index."""
    came = [0, 0, 0]
    places: list[list[int]] = [[], [], []]

    async def member() -> None:
        meeting = barrier(context)
        for round_ in range(3):
            came[round_] += 1
            places[round_].append(await meeting.wait())
            assert came[round_] == PARTIES

    await context.harness.gather(*(member() for _ in range(PARTIES)))
    assert [sorted(place) for place in places] == [list(range(PARTIES))] * 3
    assert await barrier(context).n_waiting() == 0
    assert not await barrier(context).broken()
    assert await context.client().holds() == []


@case((Variant.LOCK,), needs=NEEDS)
async def a_barrier_of_one_member_does_not_wait(context: CaseContext) -> None:
    """A barrier of one member returns at once, any number of times."""
    meeting = barrier(context, 1)
    assert [await meeting.wait() for _ in range(3)] == [0, 0, 0]
    assert (meeting.parties, meeting.name) == (1, NAME)


@case((Variant.LOCK,), needs=NEEDS)
async def members_may_share_a_barrier_object(context: CaseContext) -> None:
    """Threads or tasks may share one barrier object, as in `threading`."""
    meeting = barrier(context)
    places = await context.harness.gather(*(meeting.wait() for _ in range(PARTIES)))
    assert sorted(places) == list(range(PARTIES))


@case((Variant.LOCK,), needs=NEEDS)
async def members_leave_a_barrier_block_together(context: CaseContext) -> None:
    """No member leaves its block before all have reached its end."""
    inside = done = 0

    async def member(number: int) -> None:
        nonlocal inside, done
        inside += 1
        async with barrier(context):
            assert inside == PARTIES
            await context.harness.sleep(0.05 * number)
            done += 1
        assert done == PARTIES

    await context.harness.gather(*(member(number) for number in range(PARTIES)))
    assert await context.client().holds() == []


@case((Variant.LOCK,), needs=NEEDS)
async def new_members_wait_until_the_others_have_left(context: CaseContext) -> None:
    """New members enter when the members of the round before have left."""
    inside: list[int] = []
    left: list[int] = []

    async def member(number: int) -> None:
        async with barrier(context, 2):
            inside.append(number)
            await context.harness.sleep(0.1)
            left.append(number)
            assert number < 2 or len(left) > 2

    first = [context.harness.spawn(partial(member, number)) for number in range(2)]
    while len(inside) < 2:
        await context.harness.sleep(0.01)
    second = [context.harness.spawn(partial(member, number)) for number in (2, 3)]
    for job in first + second:
        await job.result()
    assert set(left[:2]) == {0, 1}


@case((Variant.LOCK,), needs=NEEDS)
async def an_abort_breaks_a_barrier_until_a_reset(context: CaseContext) -> None:
    """Current and later members get an error; after a reset the barrier works again."""
    jobs = [context.harness.spawn(lambda: barrier(context).wait()) for _ in range(2)]
    await waiting(context, 2)
    await barrier(context).abort()
    for job in jobs:
        assert "abort" in str(await raised(BrokenBarrier, job.result()))
    assert await barrier(context).broken()
    assert await barrier(context).n_waiting() == 0
    await raised(BrokenBarrier, barrier(context).wait())
    await barrier(context).reset()
    assert not await barrier(context).broken()
    places = await context.harness.gather(*(barrier(context).wait() for _ in range(PARTIES)))
    assert sorted(places) == list(range(PARTIES))


@case((Variant.LOCK,), needs=NEEDS)
async def a_reset_raises_in_waiting_members(context: CaseContext) -> None:
    """Waiting members get the error of a broken barrier; new members can use it."""
    job = context.harness.spawn(lambda: barrier(context).wait())
    await waiting(context, 1)
    await barrier(context).reset()
    await raised(BrokenBarrier, job.result())
    assert not await barrier(context).broken()
    await context.harness.gather(*(barrier(context).wait() for _ in range(PARTIES)))


@case((Variant.LOCK,), needs=NEEDS)
async def a_timeout_breaks_a_barrier(context: CaseContext) -> None:
    """A timeout breaks the barrier for all members, as in `threading`."""
    patient = context.harness.spawn(lambda: barrier(context).wait())
    await waiting(context, 1)
    start = context.harness.now()
    error = await raised(BrokenBarrier, barrier(context).wait(timeout=0.3))
    assert context.harness.now() - start >= 0.29
    context.ended_within(start, 0.3)
    assert error.waited is not None
    await raised(BrokenBarrier, patient.result())
    assert await barrier(context).broken()


@case((Variant.LOCK,), needs=NEEDS)
async def with_drop_dead_a_timeout_drops_only_that_member(context: CaseContext) -> None:
    """With ``drop_dead`` the others keep waiting, and meet with one more member."""
    patient = context.harness.spawn(lambda: barrier(context, 3, drop_dead=True).wait())
    await waiting(context, 1, parties=3, drop_dead=True)
    await raised(AcquireTimeout, barrier(context, 3, drop_dead=True).wait(timeout=0.2))
    jobs = [context.harness.spawn(lambda: barrier(context, 3, drop_dead=True).wait()) for _ in range(2)]
    assert {await patient.result(), await jobs[0].result(), await jobs[1].result()} == {0, 1, 2}


@case((Variant.LOCK,), needs=NEEDS)
async def an_error_in_a_block_breaks_the_barrier(context: CaseContext) -> None:
    """The failed member cannot reach the end of its block: the others get an error, and its own error propagates."""

    async def member(*, fails: bool) -> None:
        async with barrier(context, 2):
            if fails:
                raise ZeroDivisionError

    jobs = [context.harness.spawn(partial(member, fails=fails)) for fails in (True, False)]
    await raised(ZeroDivisionError, jobs[0].result())
    assert "ZeroDivisionError" in str(await raised(BrokenBarrier, jobs[1].result()))
    assert await barrier(context, 2).broken()


@case((Variant.LOCK,), needs=NEEDS)
async def with_drop_dead_an_error_drops_only_that_member(context: CaseContext) -> None:
    """With ``drop_dead`` the others leave without the failed member."""

    async def member(*, fails: bool) -> None:
        async with barrier(context, 2, drop_dead=True):
            if fails:
                raise ZeroDivisionError

    jobs = [context.harness.spawn(partial(member, fails=fails)) for fails in (True, False)]
    await raised(ZeroDivisionError, jobs[0].result())
    await jobs[1].result()


@case((Variant.LOCK,), needs=NEEDS)
async def leave_needs_a_preceding_enter(context: CaseContext) -> None:
    """Only a member inside can leave, and it cannot enter again."""
    meeting = barrier(context, 1)
    await raised(NotHeld, meeting.leave())
    await meeting.enter()
    await raised(RuntimeError, meeting.enter())
    await meeting.leave()
    await raised(NotHeld, meeting.leave())


@case((Variant.LOCK,), needs=NEEDS)
async def all_members_must_give_the_same_parties(context: CaseContext) -> None:
    """A different number of parties or a different ``drop_dead`` raises an error that names the difference."""
    job = context.harness.spawn(lambda: barrier(context).wait())
    await waiting(context, 1)
    await raised(NameInUse, barrier(context, 3).wait())
    await raised(NameInUse, barrier(context, drop_dead=True).wait())
    await barrier(context, 3).reset()
    await raised(BrokenBarrier, job.result())
    places = await context.harness.gather(*(barrier(context, 3).wait() for _ in range(3)))
    assert sorted(places) == [0, 1, 2]


@case((Variant.LOCK,), needs=NEEDS)
async def a_reset_to_other_parties_raises_in_members_inside(context: CaseContext) -> None:
    """Members inside get the error of a broken barrier when they leave; the new parties can use it."""
    entered, reset = [context.harness.event() for _ in range(2)], [context.harness.event() for _ in range(2)]

    async def member(number: int) -> None:
        meeting = barrier(context, 2)
        await meeting.enter()
        entered[number].set()
        assert await reset[number].wait(2 * SOON)
        assert "reset" in str(await raised(BrokenBarrier, meeting.leave()))

    jobs = [context.harness.spawn(partial(member, number)) for number in range(2)]
    for event in entered:
        assert await event.wait(SOON)
    await barrier(context, 3).reset()
    for event in reset:
        event.set()
    for job in jobs:
        await job.result()
    places = await context.harness.gather(*(barrier(context, 3).wait() for _ in range(3)))
    assert sorted(places) == [0, 1, 2]


@case((Variant.LOCK,), needs=NEEDS)
async def a_member_that_lost_its_lease_breaks_the_barrier(context: CaseContext) -> None:
    """A member that lost its lease counts as dead: the others find the barrier broken within a bounded time."""
    job = context.harness.spawn(lambda: barrier(context).wait())
    lost = context.harness.spawn(lambda: barrier(context).wait())
    await waiting(context, 2)
    looker = context.client()
    info = await looker.inspect(f"barrier/{NAME}")
    assert info is not None
    victim = info.holders[0]
    assert victim.token is not None
    start = context.harness.now()
    assert await looker.force_release(f"barrier/{NAME}", victim.token)
    await raised(BrokenBarrier, job.result())
    await raised(BrokenBarrier, lost.result())
    context.ended_within(start, 2)  # the second member checks every two seconds


@case((Variant.LOCK,), needs=NEEDS)
async def a_barrier_refuses_an_invalid_number(context: CaseContext) -> None:
    """An invalid number of parties raises an error before any request is sent."""
    client = context.client()

    async def made(parties: Any) -> AsyncBarrier:
        return client.barrier(NAME, parties)

    for wrong in (0, -1, 1001):
        await raised(ValueError, made(wrong))
    for odd in (True, 1.5, "2"):
        await raised(TypeError, made(odd))
    await raised(ValueError, barrier(context).wait(timeout=-2))

"""Barriers: nobody goes on before all are there; who dies, gives up or fails breaks it, or is left out."""

from __future__ import annotations

from functools import partial
from typing import Any

from leasehold.errors import AcquireTimeout, BrokenBarrier, NameInUse, NotHeld
from leasehold.primitives.coordination.barrier import AsyncBarrier
from leasehold_lab.conformance.case_context import NOISE, SOON, Arena, Variant, case, raised

NAME = "phase {1}"
PARTIES = 4
NEEDS = ("cells", "permits")


def barrier(arena: Arena, parties: int = PARTIES, **options: Any) -> AsyncBarrier:
    """Make a barrier of a client of its own, with a lease that a case can wait for."""
    given: dict[str, Any] = {"timeout": 4 * SOON, **options}
    return arena.client().barrier(NAME, parties, **given)


async def waiting(arena: Arena, count: int, **options: Any) -> None:
    """Wait until so many wait."""
    seen, until = barrier(arena, **options), arena.world.now() + SOON
    while await seen.n_waiting() != count:
        assert arena.world.now() < until, f"{count} members expected, there are {await seen.n_waiting()}"
        await arena.world.sleep(0.005)


@case((Variant.LOCK,), needs=NEEDS)
async def all_go_on_together_again_and_again(arena: Arena) -> None:
    """Nobody is in a later round than another has come to; each round gives each member another place."""
    came = [0, 0, 0]
    places: list[list[int]] = [[], [], []]

    async def member() -> None:
        meeting = barrier(arena)
        for round_ in range(3):
            came[round_] += 1
            places[round_].append(await meeting.wait())
            assert came[round_] == PARTIES

    await arena.world.gather(*(member() for _ in range(PARTIES)))
    assert [sorted(place) for place in places] == [list(range(PARTIES))] * 3
    assert await barrier(arena).n_waiting() == 0
    assert not await barrier(arena).broken()
    assert await arena.client().holds() == []


@case((Variant.LOCK,), needs=NEEDS)
async def one_party_waits_for_nobody(arena: Arena) -> None:
    """As often as it likes."""
    meeting = barrier(arena, 1)
    assert [await meeting.wait() for _ in range(3)] == [0, 0, 0]
    assert (meeting.parties, meeting.name) == (1, NAME)


@case((Variant.LOCK,), needs=NEEDS)
async def members_of_one_object_meet(arena: Arena) -> None:
    """Threads or tasks may share it, as one of `threading`."""
    meeting = barrier(arena)
    places = await arena.world.gather(*(meeting.wait() for _ in range(PARTIES)))
    assert sorted(places) == list(range(PARTIES))


@case((Variant.LOCK,), needs=NEEDS)
async def they_enter_and_leave_together(arena: Arena) -> None:
    """Nobody is out of its block before all have come to its end."""
    inside = done = 0

    async def member(number: int) -> None:
        nonlocal inside, done
        inside += 1
        async with barrier(arena):
            assert inside == PARTIES
            await arena.world.sleep(0.05 * number)
            done += 1
        assert done == PARTIES

    await arena.world.gather(*(member(number) for number in range(PARTIES)))
    assert await arena.client().holds() == []


@case((Variant.LOCK,), needs=NEEDS)
async def who_comes_while_others_are_inside_waits(arena: Arena) -> None:
    """The next ones enter when those have left."""
    inside: list[int] = []
    left: list[int] = []

    async def member(number: int) -> None:
        async with barrier(arena, 2):
            inside.append(number)
            await arena.world.sleep(0.1)
            left.append(number)
            assert number < 2 or len(left) > 2

    first = [arena.world.spawn(partial(member, number)) for number in range(2)]
    while len(inside) < 2:
        await arena.world.sleep(0.01)
    second = [arena.world.spawn(partial(member, number)) for number in (2, 3)]
    for job in first + second:
        await job.result()
    assert set(left[:2]) == {0, 1}


@case((Variant.LOCK,), needs=NEEDS)
async def an_abort_breaks_it_until_a_reset(arena: Arena) -> None:
    """Those who wait hear of it, those who come later too; after a reset it is whole."""
    jobs = [arena.world.spawn(lambda: barrier(arena).wait()) for _ in range(2)]
    await waiting(arena, 2)
    await barrier(arena).abort()
    for job in jobs:
        assert "abort" in str(await raised(BrokenBarrier, job.result()))
    assert await barrier(arena).broken()
    assert await barrier(arena).n_waiting() == 0
    await raised(BrokenBarrier, barrier(arena).wait())
    await barrier(arena).reset()
    assert not await barrier(arena).broken()
    places = await arena.world.gather(*(barrier(arena).wait() for _ in range(PARTIES)))
    assert sorted(places) == list(range(PARTIES))


@case((Variant.LOCK,), needs=NEEDS)
async def a_reset_sends_away_who_waits(arena: Arena) -> None:
    """They get the error of a broken barrier, and it is whole for who comes next."""
    job = arena.world.spawn(lambda: barrier(arena).wait())
    await waiting(arena, 1)
    await barrier(arena).reset()
    await raised(BrokenBarrier, job.result())
    assert not await barrier(arena).broken()
    await arena.world.gather(*(barrier(arena).wait() for _ in range(PARTIES)))


@case((Variant.LOCK,), needs=NEEDS)
async def a_timeout_breaks_it(arena: Arena) -> None:
    """For all, as in `threading`."""
    patient = arena.world.spawn(lambda: barrier(arena).wait())
    await waiting(arena, 1)
    start = arena.world.now()
    error = await raised(BrokenBarrier, barrier(arena).wait(timeout=0.3))
    assert 0.29 <= arena.world.now() - start < 0.3 + NOISE
    assert error.waited is not None
    await raised(BrokenBarrier, patient.result())
    assert await barrier(arena).broken()


@case((Variant.LOCK,), needs=NEEDS)
async def a_timeout_leaves_out_only_who_gave_up(arena: Arena) -> None:
    """With ``drop_dead``: the others wait on, and meet with one more."""
    patient = arena.world.spawn(lambda: barrier(arena, 3, drop_dead=True).wait())
    await waiting(arena, 1, parties=3, drop_dead=True)
    await raised(AcquireTimeout, barrier(arena, 3, drop_dead=True).wait(timeout=0.2))
    jobs = [arena.world.spawn(lambda: barrier(arena, 3, drop_dead=True).wait()) for _ in range(2)]
    assert {await patient.result(), await jobs[0].result(), await jobs[1].result()} == {0, 1, 2}


@case((Variant.LOCK,), needs=NEEDS)
async def an_error_inside_breaks_it_for_the_others(arena: Arena) -> None:
    """It cannot come to the end of its block: those who wait there hear of it, and its own error goes on."""

    async def member(*, fails: bool) -> None:
        async with barrier(arena, 2):
            if fails:
                raise ZeroDivisionError

    jobs = [arena.world.spawn(partial(member, fails=fails)) for fails in (True, False)]
    await raised(ZeroDivisionError, jobs[0].result())
    assert "ZeroDivisionError" in str(await raised(BrokenBarrier, jobs[1].result()))
    assert await barrier(arena, 2).broken()


@case((Variant.LOCK,), needs=NEEDS)
async def an_error_inside_leaves_out_who_failed(arena: Arena) -> None:
    """With ``drop_dead`` the others leave without it."""

    async def member(*, fails: bool) -> None:
        async with barrier(arena, 2, drop_dead=True):
            if fails:
                raise ZeroDivisionError

    jobs = [arena.world.spawn(partial(member, fails=fails)) for fails in (True, False)]
    await raised(ZeroDivisionError, jobs[0].result())
    await jobs[1].result()


@case((Variant.LOCK,), needs=NEEDS)
async def who_is_not_inside_cannot_leave(arena: Arena) -> None:
    """And who is inside cannot enter again."""
    meeting = barrier(arena, 1)
    await raised(NotHeld, meeting.leave())
    await meeting.enter()
    await raised(RuntimeError, meeting.enter())
    await meeting.leave()
    await raised(NotHeld, meeting.leave())


@case((Variant.LOCK,), needs=NEEDS)
async def all_say_the_same_parties(arena: Arena) -> None:
    """Who says another number, or leaves out where others do not, is told so."""
    job = arena.world.spawn(lambda: barrier(arena).wait())
    await waiting(arena, 1)
    await raised(NameInUse, barrier(arena, 3).wait())
    await raised(NameInUse, barrier(arena, drop_dead=True).wait())
    await barrier(arena, 3).reset()
    await raised(BrokenBarrier, job.result())
    places = await arena.world.gather(*(barrier(arena, 3).wait() for _ in range(3)))
    assert sorted(places) == [0, 1, 2]


@case((Variant.LOCK,), needs=NEEDS)
async def a_member_without_its_lease_is_noticed(arena: Arena) -> None:
    """One whose lease is gone, here by being broken, is dead to the others: the barrier is broken in time."""
    job = arena.world.spawn(lambda: barrier(arena).wait())
    lost = arena.world.spawn(lambda: barrier(arena).wait())
    await waiting(arena, 2)
    looker = arena.client()
    info = await looker.inspect(f"barrier/{NAME}")
    assert info is not None
    victim = info.holders[0]
    assert victim.token is not None
    start = arena.world.now()
    assert await looker.force_release(f"barrier/{NAME}", victim.token)
    await raised(BrokenBarrier, job.result())
    await raised(BrokenBarrier, lost.result())
    assert arena.world.now() - start < 2 + NOISE, "the second in line looks every two seconds"


@case((Variant.LOCK,), needs=NEEDS)
async def a_barrier_refuses_what_is_no_number(arena: Arena) -> None:
    """Before anything is sent."""
    client = arena.client()

    async def made(parties: Any) -> AsyncBarrier:
        return client.barrier(NAME, parties)

    for wrong in (0, -1, 1001):
        await raised(ValueError, made(wrong))
    for odd in (True, 1.5, "2"):
        await raised(TypeError, made(odd))
    await raised(ValueError, barrier(arena).wait(timeout=-2))

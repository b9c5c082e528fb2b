"""One candidate leads at a time, everyone can observe it, and no observer sees an older leader after a newer one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from leasehold.client import AsyncClient
from leasehold.errors import AcquireTimeout, LeaseLost, NotHeld
from leasehold.primitives.coordination.election import AsyncElection, Leader
from leasehold.primitives.coordination.leadership import AsyncLeadership
from leasehold_lab.conformance.case_context import SOON, CaseContext, case, held, raised

CELLS = ("cells",)
VALUES = ("cells", "meta")
EVERY = 0.02

LATE = 60.0
"""Seconds after which a condition counts as one that never becomes true: each look is several requests, which take long
on a busy machine."""


def candidate(
    context: CaseContext, value: Any = None, client: AsyncClient | None = None, **options: Any
) -> AsyncElection:
    """Make a candidate of the given client or of a new one."""
    return (context.client() if client is None else client).election("scheduler", value, **options)


async def following(stream: Any) -> Leader | None:
    """Return what an observer sees next, in either flavor."""
    if hasattr(stream, "__anext__"):
        seen: Leader | None = await anext(stream)
        return seen
    for seen in stream:
        return seen
    raise StopAsyncIteration


async def until(context: CaseContext, true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    end = context.harness.now() + LATE
    while not true():
        assert context.harness.now() < end, "the condition was never true"
        await context.harness.sleep(0.005)


@case(needs=VALUES)
async def one_candidate_leads_and_all_observers_see_it(context: CaseContext) -> None:
    """The first candidate leads, with its value and token; the others wait, and lead later with higher tokens."""
    one, two = candidate(context, "one"), candidate(context, {"host": "two"})
    assert await two.leader() is None
    first = held(await one.campaign(timeout=SOON))
    seen = await two.leader()
    assert seen is not None
    assert (seen.value, seen.token, seen.owner) == ("one", first.token, first.owner)
    assert first.value == "one"
    assert await two.campaign(blocking=False) is None
    assert await two.campaign(timeout=0.1) is None
    job = context.harness.spawn(lambda: two.campaign(timeout=SOON))
    await context.queued(context.client(), 1, "election/scheduler")
    await first.resign()
    second = held(await job.result())
    assert second.token > first.token
    seen = await one.leader()
    assert seen is not None
    assert (seen.value, seen.token) == ({"host": "two"}, second.token)
    await second.release()
    assert await one.leader() is None


@case(needs=VALUES)
async def proclaim_changes_the_value_of_the_leader(context: CaseContext) -> None:
    """All see a proclaimed value from then on; the next leader begins with its own value."""
    one, two = candidate(context, "one"), candidate(context, "two")
    async with one as leadership:
        for value in ("again", {"port": 9090}, None, "end"):
            await leadership.proclaim(value)
            assert leadership.value == value
            seen = await two.leader()
            assert seen == Leader(value, leadership.token, leadership.owner)
        await one.proclaim("through the election")
        assert leadership.value == "through the election"
        await raised(ValueError, leadership.proclaim("x" * 2000))
        number: Any = 7
        await raised(TypeError, leadership.proclaim(number))
    await raised(NotHeld, leadership.proclaim("too late"))
    await raised(NotHeld, one.proclaim("too late"))
    assert await two.leader() is None
    async with two as leadership:
        seen = await one.leader()
        assert seen == Leader("two", leadership.token, leadership.owner)


@case(needs=CELLS)
async def resign_ends_the_leadership(context: CaseContext) -> None:
    """`resign` ends the last leadership of the object; without one it raises an error."""
    one = candidate(context)
    await raised(NotHeld, one.resign())
    leadership = held(await one.campaign(timeout=SOON))
    await one.resign()
    await raised(NotHeld, _check(leadership))
    assert await one.leader() is None


@case(needs=VALUES)
async def a_lost_leader_cannot_proclaim(context: CaseContext) -> None:
    """A leader whose lease expired is notified; its `proclaim` raises an error and changes nothing."""
    lease = context.lasting
    one, two = candidate(context, "one", lease=lease, renew=False), candidate(context, "two")
    old = held(await one.campaign(timeout=SOON))
    await old.proclaim("proclaimed by one")
    start = context.harness.now()
    new = held(await two.campaign(timeout=SOON))
    context.ended_within(start, context.expired_after(lease))
    assert old.lost
    await raised(LeaseLost, old.proclaim("too late"))
    seen = await one.leader()
    assert seen == Leader("two", new.token, new.owner)
    await raised(LeaseLost, old.resign())
    await new.resign()


@case(needs=VALUES)
async def an_observer_sees_each_lasting_state(context: CaseContext) -> None:
    """An observer sees the current state, then each change in order, with "no leader" between two leaders."""
    client = context.client()
    stream = candidate(context, client=client).observe(every=EVERY)
    assert await following(stream) is None
    last = 0
    for value in ("one", "two"):
        async with candidate(context, value) as leadership:
            assert leadership.token > last
            last = leadership.token
            assert await following(stream) == Leader(value, last, leadership.owner)
            await leadership.proclaim(value + " again")
            assert await following(stream) == Leader(value + " again", last, leadership.owner)
        assert await following(stream) is None
    await client.close()
    await raised(StopAsyncIteration, following(stream))


@case(needs=VALUES)
async def an_observer_reaches_the_last_state(context: CaseContext) -> None:
    """Under fast changes tokens never decrease, and the last state is observed."""
    client = context.client()
    stream = candidate(context, client=client).observe(every=EVERY)
    tokens = list[int]()

    async def reign() -> None:
        try:
            for number in range(12):
                async with candidate(context, str(number)) as leadership:
                    await leadership.proclaim(f"{number} in office")
                    if number == 11:
                        await until(context, lambda: leadership.token in tokens)
        finally:
            await client.close()  # so the observation ends, whatever happened

    job = context.harness.spawn(reign)
    with suppress(StopAsyncIteration):
        while True:
            seen = await following(stream)
            if seen is not None:
                tokens.append(seen.token)
                assert seen.value in (f"{int(seen.value.split()[0])}", f"{int(seen.value.split()[0])} in office")
    await job.result()
    assert tokens == sorted(tokens)


@case(needs=VALUES)
async def run_leads_until_its_work_ends(context: CaseContext) -> None:
    """`run` calls the work as the leader, resigns when it ends, and returns or raises its result."""
    one, two = candidate(context, "one"), candidate(context, "two")

    async def work(leadership: AsyncLeadership) -> int:
        leadership.raise_if_lost()
        assert await two.campaign(blocking=False) is None
        return leadership.token

    async def fail(leadership: AsyncLeadership) -> None:
        raise ZeroDivisionError

    assert await one.run(work) > 0
    assert await two.leader() is None
    await raised(ZeroDivisionError, one.run(fail))
    assert await two.leader() is None
    async with two:
        await raised(AcquireTimeout, candidate(context, timeout=0.1).run(work))


@case(needs=CELLS)
async def run_campaigns_again_after_a_loss(context: CaseContext) -> None:
    """Work that lost its leadership is notified, and runs again when this candidate leads again."""
    client, tokens = context.client(), list[int]()
    one = candidate(context, lease=context.lasting)

    async def work(leadership: AsyncLeadership) -> str:
        tokens.append(leadership.token)
        if len(tokens) < 3:
            assert await client.force_release("election/scheduler", leadership.token)
            end = context.harness.now() + SOON
            while context.harness.now() < end:
                leadership.raise_if_lost()
                await context.harness.sleep(0.01)
        return "done"

    assert await one.run(work) == "done"
    assert len(tokens) == 3
    assert tokens == sorted(set(tokens))
    assert await one.leader() is None


@case(needs=VALUES)
async def elections_and_locks_of_one_name_are_independent(context: CaseContext) -> None:
    """An election, a lock and a value of one name do not affect each other."""
    client = context.client()
    async with client.lock("scheduler"), client.election("scheduler", "leader") as leadership:
        await client.versioned("scheduler").put("value")
        await leadership.proclaim("proclaimed")
        assert (await client.versioned("scheduler").get()).value == "value"
        assert [info.name for info in await client.holds()] == ["election/scheduler", "scheduler"]


async def _check(hold: Any) -> None:
    hold.raise_if_lost()

"""`once`, `scheduled` and `synchronized`: work that does not run twice, nor in two instances at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from leasehold.errors import AcquireTimeout, LeaseLost
from leasehold.primitives.locks.hold import AsyncHold
from leasehold_lab.conformance.case_context import LASTING, SOON, CaseContext, Variant, case, raised

KEY = "payment:7 {ключ}"
CALLERS = 5


@case((Variant.LOCK,), needs=("cells",))
async def once_runs_the_work_for_one_of_several_calls(context: CaseContext) -> None:
    """Of several concurrent calls one runs the work; all calls return its result, later ones too."""
    done: list[object] = []

    async def charge(amount: int) -> dict[str, object]:
        done.append(amount)
        await context.harness.sleep(0.1)
        return {"paid": (amount,), "number": len(done)}

    async def deliver() -> object:
        return await context.client().once(KEY, ttl=60).run(charge, 30)

    results = await context.harness.gather(*(deliver() for _ in range(CALLERS)))
    assert done == [30]
    assert [*results, await deliver()] == [{"paid": [30], "number": 1}] * (CALLERS + 1)
    assert await context.client().once(KEY, ttl=60).done()
    assert not await context.client().once("another", ttl=60).done()


@case((Variant.LOCK,), needs=("cells",))
async def once_runs_again_after_a_failure(context: CaseContext) -> None:
    """The error is raised to the caller, and no result is kept."""
    once = context.client().once(KEY, ttl=60)

    def fail() -> None:
        raise ZeroDivisionError

    await raised(ZeroDivisionError, once.run(fail))
    assert not await once.done()
    assert await once.run(lambda: "done") == "done"
    assert await once.run(fail) == "done"


@case((Variant.LOCK,), needs=("cells",))
async def a_result_of_once_expires_after_its_ttl(context: CaseContext) -> None:
    """After the ``ttl`` the work runs again."""
    once = context.client().once(KEY, ttl=LASTING)
    assert await once.run(lambda: b"\x00first") == b"\x00first"
    assert await once.run(lambda: b"second") == b"\x00first"
    await context.harness.sleep(context.expired_after(LASTING))
    assert await once.run(lambda: b"second") == b"second"


@case((Variant.LOCK,), needs=("cells",))
async def once_does_not_repeat_work_with_an_unstorable_result(context: CaseContext) -> None:
    """The work is recorded as done; the first caller and later ones get an error that explains the problem."""
    once = context.client().once(KEY, ttl=60)
    done: list[object] = []

    def work() -> object:
        done.append(1)
        return object()

    await raised(TypeError, once.run(work))
    assert await once.done()
    error = await raised(ValueError, once.run(work))
    assert "JSON" in str(error)
    assert done == [1]


@case((Variant.LOCK,), needs=("cells",))
async def the_first_recorded_result_of_once_wins(context: CaseContext) -> None:
    """A caller that lost its lease is notified, and does not replace a recorded result; both get the first result."""
    done: list[object] = []

    async def slow() -> str:
        info = await context.client().inspect(f"once/{KEY}")
        assert info is not None
        token = info.holders[0].token
        assert token is not None
        assert await context.client().force_release(f"once/{KEY}", token)
        done.append(await context.client().once(KEY, ttl=60).run(lambda: "theirs"))
        return "ours"

    await raised(LeaseLost, context.client().once(KEY, ttl=60, lease=context.lasting).run(slow))
    assert done == ["theirs"] or (context.harness.cancels and not done)  # its task may be cancelled before
    assert await context.client().once(KEY, ttl=60).run(lambda: "theirs") == "theirs"


@case((Variant.LOCK,), needs=("cells",))
async def a_caller_of_once_may_time_out(context: CaseContext) -> None:
    """The timeout of a later caller ends its wait, not the work."""
    began, go_on = context.harness.event(), context.harness.event()

    async def work() -> str:
        began.set()
        await go_on.wait(SOON)
        return "done"

    job = context.harness.spawn(lambda: context.client().once(KEY, ttl=60).run(work))
    assert await began.wait(SOON)
    await raised(AcquireTimeout, context.client().once(KEY, ttl=60, timeout=0.1).run(work))
    go_on.set()
    assert await job.result() == "done"


@case((Variant.LOCK,), needs=("cells",))
async def a_scheduled_tick_runs_in_one_instance(context: CaseContext) -> None:
    """Concurrent and slightly later calls run the job once; the next tick runs again, in any instance."""
    ran: list[object] = []

    async def tick() -> bool:
        return await context.client().scheduled("mail", at_least=LASTING, at_most=60).run(lambda: ran.append(1))

    assert sorted(await context.harness.gather(*(tick() for _ in range(CALLERS)))) == [False] * (CALLERS - 1) + [True]
    assert not await tick()  # as from an instance whose clock is late
    await context.harness.sleep(context.expired_after(LASTING))
    assert await tick()
    assert ran == [1, 1]


@case((Variant.LOCK,), needs=("cells",))
async def a_tick_with_an_identity_runs_once_however_late(context: CaseContext) -> None:
    """Long after ``at_least`` an instance that is late runs neither the last tick again nor an earlier one."""
    ran: list[object] = []

    async def run(tick: datetime, name: str = "mail") -> bool:
        job = context.client().scheduled(name, at_least=0.05, at_most=60)
        return await job.run(ran.append, name, tick=tick)

    twelve, minutes = datetime(2026, 3, 1, 12, tzinfo=UTC), timedelta(minutes=5)
    together = await context.harness.gather(*(run(twelve) for _ in range(CALLERS)))
    assert sorted(together) == [False] * (CALLERS - 1) + [True]
    await context.harness.sleep(context.expired_after(0.05))
    assert not await run(twelve)
    assert await run(twelve + minutes)
    for late in (twelve, twelve + minutes, (twelve + minutes).astimezone(timezone(-minutes))):
        assert not await run(late)
    assert await run(twelve, "other")
    assert ran == ["mail", "mail", "other"]
    assert await context.client().holds() == []


@case((Variant.LOCK,), needs=("cells",))
async def a_tick_that_begins_late_does_not_delay_the_next(context: CaseContext) -> None:
    """A late run does not delay the next tick, which begins at once; a tick that begins meanwhile is skipped."""
    job, others = (context.client().scheduled("mail", at_least=60, at_most=60) for _ in range(2))
    seen: list[object] = []

    async def slow(tick: int) -> None:
        seen.append((tick, await others.run(lambda: seen.append("two at a time"), tick=tick + 1)))

    assert await job.run(slow, tick=1)
    assert await others.run(slow, tick=3)
    assert seen == [(1, False), (3, False)]


@case((Variant.LOCK,), needs=("cells",))
async def a_tick_is_forgotten_after_its_ttl(context: CaseContext) -> None:
    """The record of the last tick lives for ``ttl``; then an earlier tick would run."""
    job = context.client().scheduled("mail", at_most=60, ttl=LASTING)
    assert await job.run(lambda: None, tick="2026-03-02")
    assert not await job.run(lambda: None, tick="2026-03-01")
    await context.harness.sleep(context.expired_after(LASTING))
    assert await job.run(lambda: None, tick="2026-03-01")


@case((Variant.LOCK,), needs=("cells",))
async def a_failed_job_does_not_run_again_in_its_tick(context: CaseContext) -> None:
    """Its error is raised, and no other instance runs it in the same tick."""
    job = context.client().scheduled("mail", at_least=60, at_most=60)

    def fail() -> None:
        raise ZeroDivisionError

    await raised(ZeroDivisionError, job.run(fail))
    assert not await context.client().scheduled("mail", at_least=60, at_most=60).run(fail)


@case((Variant.LOCK,), needs=("cells",))
async def a_job_is_notified_when_it_exceeds_at_most(context: CaseContext) -> None:
    """A job that takes longer than ``at_most`` is notified, and another instance may begin."""
    began, at_most = context.harness.event(), context.at_least_shortest(0.2 + LASTING)

    async def slow() -> None:
        began.set()
        await context.harness.sleep(2.5 * at_most)

    job = context.harness.spawn(lambda: context.client().scheduled("mail", at_least=0.1, at_most=at_most).run(slow))
    assert await began.wait(SOON)
    other = context.client().scheduled("mail", at_least=0.1, at_most=at_most)
    await context.harness.sleep(0.2)
    assert not await other.run(lambda: None)
    await context.harness.sleep(context.expired_after(at_most) - 0.2)
    assert await other.run(lambda: None)
    await raised(LeaseLost, job.result())


@case((Variant.LOCK,), needs=("cells",))
async def synchronized_calls_with_equal_arguments_exclude_each_other(context: CaseContext) -> None:
    """Calls with equal arguments exclude each other across clients, others do not; the function may call itself."""
    inside: dict[int, int] = {}
    most: dict[int, int] = {}
    tokens: list[object] = []

    def shipping() -> Callable[[int], Coroutine[Any, Any, int]]:
        @context.client().synchronized("order:{order}", timeout=SOON, hold="hold")
        async def ship(order: int, again: bool = True, *, hold: AsyncHold | None = None) -> int:
            assert hold is not None
            assert hold.name == f"order:{order}"
            if again:
                tokens.append((order, hold.token))
                inside[order] = inside.get(order, 0) + 1
                most[order] = max(most.get(order, 0), inside[order])
                await context.harness.sleep(0.05)
                assert await ship(order, again=False) == order
                inside[order] -= 1
            return order

        return ship

    work = [shipping()(order) for order in (1, 2, 1, 1)]
    assert await context.harness.gather(*work) == [1, 2, 1, 1]
    assert most == {1: 1, 2: 1}
    assert len(set(tokens)) == 4


@case((Variant.LOCK,))
async def a_synchronized_call_without_the_lock_is_not_made(context: CaseContext) -> None:
    """If the lock is not acquired in time, the call raises and the function does not run."""
    client = context.client()

    def name(order: int) -> str:
        return f"order:{order}"

    @client.synchronized(name, timeout=0.1)
    async def ship(order: int) -> None:
        raise AssertionError("it runs without its lock")

    async with context.client().lock("order:7"):
        await raised(AcquireTimeout, ship(7))

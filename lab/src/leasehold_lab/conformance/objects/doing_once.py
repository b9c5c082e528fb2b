"""Once, scheduled, synchronized: work that is not done twice, nor by two at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold.errors import AcquireTimeout, LeaseLost
from leasehold.primitives.locks.hold import AsyncHold
from leasehold_lab.conformance.case_context import SOON, CaseContext, Variant, case, raised

KEY = "payment:7 {ключ}"
CALLERS = 5


@case((Variant.LOCK,), needs=("cells",))
async def a_message_that_comes_twice_is_worked_on_once(context: CaseContext) -> None:
    """Of several deliveries at the same time one does the work; all get its result, later ones too."""
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
async def work_that_fails_is_done_by_the_next(context: CaseContext) -> None:
    """The error is the caller's; nothing is kept."""
    once = context.client().once(KEY, ttl=60)

    def fail() -> None:
        raise ZeroDivisionError

    await raised(ZeroDivisionError, once.run(fail))
    assert not await once.done()
    assert await once.run(lambda: "done") == "done"
    assert await once.run(fail) == "done"


@case((Variant.LOCK,), needs=("cells",))
async def a_result_is_kept_for_its_time(context: CaseContext) -> None:
    """After that the work is done anew."""
    once = context.client().once(KEY, ttl=0.3)
    assert await once.run(lambda: b"\x00first") == b"\x00first"
    assert await once.run(lambda: b"second") == b"\x00first"
    await context.harness.sleep(context.gone(0.3))
    assert await once.run(lambda: b"second") == b"second"


@case((Variant.LOCK,), needs=("cells",))
async def a_result_that_cannot_be_kept_is_no_reason_to_do_it_again(context: CaseContext) -> None:
    """That it was done is recorded; the first caller and later ones hear what is wrong."""
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
async def the_first_result_is_everybodys(context: CaseContext) -> None:
    """A doer that lost its lease does not replace what another recorded, and is told; both get one result."""
    done: list[object] = []

    async def slow() -> str:
        info = await context.client().inspect(f"once/{KEY}")
        assert info is not None
        token = info.holders[0].token
        assert token is not None
        assert await context.client().force_release(f"once/{KEY}", token)
        done.append(await context.client().once(KEY, ttl=60).run(lambda: "theirs"))
        return "ours"

    await raised(LeaseLost, context.client().once(KEY, ttl=60, lease=context.short).run(slow))
    assert done == ["theirs"] or (context.harness.cancels and not done)  # it may be cut short before
    assert await context.client().once(KEY, ttl=60).run(lambda: "theirs") == "theirs"


@case((Variant.LOCK,), needs=("cells",))
async def who_waits_for_the_doer_may_give_up(context: CaseContext) -> None:
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
async def a_tick_runs_in_one_instance(context: CaseContext) -> None:
    """At the same time, and a little later when the job is over; the next tick runs again, wherever."""
    ran: list[object] = []

    async def tick() -> bool:
        return await context.client().scheduled("mail", at_least=0.5, at_most=60).run(lambda: ran.append(1))

    assert sorted(await context.harness.gather(*(tick() for _ in range(CALLERS)))) == [False] * (CALLERS - 1) + [True]
    assert not await tick()  # a clock that is late
    await context.harness.sleep(context.gone(0.5))
    assert await tick()
    assert ran == [1, 1]


@case((Variant.LOCK,), needs=("cells",))
async def a_job_that_fails_has_had_its_tick(context: CaseContext) -> None:
    """Its error is raised; others do not run it in the same tick."""
    job = context.client().scheduled("mail", at_least=60, at_most=60)

    def fail() -> None:
        raise ZeroDivisionError

    await raised(ZeroDivisionError, job.run(fail))
    assert not await context.client().scheduled("mail", at_least=60, at_most=60).run(fail)


@case((Variant.LOCK,), needs=("cells",))
async def a_job_loses_its_right_after_at_most(context: CaseContext) -> None:
    """One that takes longer is told, and another instance may begin."""
    began, at_most = context.harness.event(), context.kept(0.6)

    async def slow() -> None:
        began.set()
        await context.harness.sleep(2.5 * at_most)

    job = context.harness.spawn(lambda: context.client().scheduled("mail", at_least=0.1, at_most=at_most).run(slow))
    assert await began.wait(SOON)
    other = context.client().scheduled("mail", at_least=0.1, at_most=at_most)
    await context.harness.sleep(0.2)
    assert not await other.run(lambda: None)
    await context.harness.sleep(context.gone(at_most) - 0.2)
    assert await other.run(lambda: None)
    await raised(LeaseLost, job.result())


@case((Variant.LOCK,), needs=("cells",))
async def calls_with_the_same_arguments_take_turns(context: CaseContext) -> None:
    """Calls for one order exclude each other across clients, calls for others do not; the function may call itself."""
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
async def a_call_that_does_not_get_the_lock_is_not_made(context: CaseContext) -> None:
    """It raises, and the function does not run."""
    client = context.client()

    def name(order: int) -> str:
        return f"order:{order}"

    @client.synchronized(name, timeout=0.1)
    async def ship(order: int) -> None:
        raise AssertionError("it runs without its lock")

    async with context.client().lock("order:7"):
        await raised(AcquireTimeout, ship(7))

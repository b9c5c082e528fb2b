"""How waits at a barrier end when it does not go as wished: no room, no time, at the last moment, forgotten, forked."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import AsyncExitStack, ExitStack

import pytest

from leasehold import AcquireTimeout, AsyncBarrier, BrokenBarrier, Client, LeaseLost, NotHeld
from leasehold._model import Change
from leasehold.primitives.coordination import barrier_members
from leasehold.primitives.coordination import barrier_rounds as rounds_of
from leasehold.primitives.coordination.barrier_rounds import Rounds
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness, SimulatedHarness

LEASE = 30.0

numbers = itertools.count()

drop_deads = pytest.mark.parametrize("drop_dead", [False, True], ids=["breaks", "leaves out"])


def barriers(harness: Harness, parties: int, count: int, *, drop_dead: bool = False) -> list[AsyncBarrier]:
    """Return one barrier, as so many clients have it."""
    memory = Memory(f"barrier-{next(numbers)}")
    return [
        harness.client(memory).barrier("a", parties, lease=LEASE, drop_dead=drop_dead, timeout=20.0)
        for _ in range(count)
    ]


@drop_deads
def test_where_others_are_inside_there_is_no_room(harness: Harness, drop_dead: bool) -> None:
    async def body(harness: Harness) -> None:
        inside, comes = barriers(harness, 1, 2, drop_dead=drop_dead)
        await inside.enter()
        kind = AcquireTimeout if drop_dead else BrokenBarrier
        with pytest.raises(kind, match="there was no room"):
            await comes.wait(timeout=0.1)
        if drop_dead:
            await inside.leave()
        else:
            with pytest.raises(BrokenBarrier, match="waited for longer than its timeout"):
                await inside.leave()

    harness.run(body)


@drop_deads
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("harness", [AsyncioHarness(), SimulatedHarness()], ids=lambda harness: harness.name)
def test_a_block_may_end_in_another_task(harness: Harness, drop_dead: bool, fails: bool) -> None:
    """Fixtures and exit stacks may do this."""

    async def body(harness: Harness) -> None:
        here, other = barriers(harness, 2, 2, drop_dead=drop_dead)
        stack = AsyncExitStack()
        enters = harness.spawn(lambda: stack.enter_async_context(here))
        assert {await other.enter(), await enters.result()} == {0, 1}
        if fails:
            with pytest.raises(ValueError, match="mine"):
                await harness.spawn(lambda: fail_in(stack)).result()
            if drop_dead:
                await other.leave()
            else:
                with pytest.raises(BrokenBarrier, match="failed inside: ValueError"):
                    await other.leave()
        else:
            leaves = harness.spawn(stack.aclose)
            await other.leave()
            await leaves.result()
        assert await here.n_waiting() == 0

    async def fail_in(stack: AsyncExitStack) -> None:
        async with stack:
            raise ValueError("mine")

    harness.run(body)


def test_who_is_inside_must_leave_before_it_waits_or_enters_again(harness: Harness) -> None:
    """It would wait for itself."""

    async def body(harness: Harness) -> None:
        (barrier,) = barriers(harness, 1, 1)
        async with barrier:
            for again in (barrier.wait, barrier.enter):
                with pytest.raises(RuntimeError, match="inside barrier 'a' already; leave first"):
                    await again(timeout=0.1)
        assert await barrier.wait() == 0

    harness.run(body)


@pytest.mark.parametrize("wrong", [-2, "soon", float("nan")])
def test_a_timeout_that_is_none_changes_nothing(harness: Harness, wrong: float) -> None:
    async def body(harness: Harness) -> None:
        (barrier,) = barriers(harness, 1, 1)
        await barrier.enter()
        with pytest.raises((ValueError, TypeError)):
            await barrier.leave(wrong)
        await barrier.leave()
        assert await barrier.wait(timeout=1.0) == 0

    harness.run(body)


def test_a_block_may_end_in_another_thread_though_the_first_has_ended() -> None:
    with Client.from_url("memory:") as client:
        stack = ExitStack()
        begins = threading.Thread(target=stack.enter_context, args=[client.barrier("a", 1, lease=0.3)])
        begins.start()
        begins.join()
        time.sleep(0.5)  # its lease is renewed
        stack.close()
        assert client.holds() == []


@drop_deads
def test_who_leaves_waits_for_the_others_no_longer_than_it_said(harness: Harness, drop_dead: bool) -> None:
    async def body(harness: Harness) -> None:
        one, other = barriers(harness, 2, 2, drop_dead=drop_dead)
        enters = harness.spawn(one.enter)
        await other.enter()
        await enters.result()
        kind = AcquireTimeout if drop_dead else BrokenBarrier
        with pytest.raises(kind, match="others are still inside"):
            await other.leave(timeout=0.1)
        assert await other.broken() != drop_dead

    harness.run(body)


def test_who_is_leaving_hears_that_it_was_broken(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        one, other = barriers(harness, 2, 2)

        async def stay() -> None:
            await one.enter()
            await harness.sleep(0.1)
            await one.abort()

        stays = harness.spawn(stay)
        await other.enter()
        with pytest.raises(BrokenBarrier, match="aborted it"):
            await other.leave()
        await stays.result()

    harness.run(body)


@drop_deads
@pytest.mark.parametrize("harness", [AsyncioHarness(), SimulatedHarness()], ids=lambda harness: harness.name)
def test_a_block_may_call_leave_itself(harness: Harness, drop_dead: bool) -> None:
    async def body(harness: Harness) -> None:
        (alone,) = barriers(harness, 1, 1, drop_dead=drop_dead)
        for _ in range(2):
            async with alone:
                await alone.leave()
        assert not await alone.broken()

    harness.run(body)


def test_a_block_of_a_thread_may_call_leave_itself() -> None:
    with Client.from_url("memory:") as client:
        alone = client.barrier("a", 1)
        for _ in range(2):
            with alone:
                alone.leave()
        assert not alone.broken()
        with pytest.raises(NotHeld, match=r"not inside barrier 'a'; where another one entered .* pass timeout="):
            alone.leave()


def test_an_error_after_the_leave_is_no_failure_inside(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        (alone,) = barriers(harness, 1, 1)

        async def block() -> None:
            async with alone:
                await alone.leave()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await block()
        assert not await alone.broken()
        assert await alone.wait() == 0

    harness.run(body)


@drop_deads
def test_who_comes_at_the_last_moment_meets_both_or_neither(drop_dead: bool) -> None:
    """In virtual time, so that every order of the last looks and writes comes about."""
    latency, together = 0.05, list[tuple[bool, bool]]()
    for late in range(-30, 31):
        harness = SimulatedHarness(1, latency=(latency, latency))

        async def body(harness: Harness, after: float = 2.0 + late * latency / 5) -> tuple[bool, bool]:
            first, second = barriers(harness, 2, 2, drop_dead=drop_dead)

            async def wait(barrier: AsyncBarrier, timeout: float) -> bool:
                try:
                    await barrier.wait(timeout)
                except (AcquireTimeout, BrokenBarrier):
                    return False
                return True

            waits = harness.spawn(lambda: wait(first, 2.0))
            await harness.sleep(after)
            return await wait(second, 1.0), await waits.result()

        together.append(harness.run(body))
    assert set(together) == {(True, True), (False, False)}


@drop_deads
def test_who_was_stopped_while_it_waited_alone_is_told(drop_dead: bool) -> None:
    harness = SimulatedHarness()

    async def body(_: Harness) -> None:
        machine = harness.machine("stopped", rate=1.0)
        client = machine.client(Memory())
        job = machine.spawn(lambda: client.barrier("a", 2, lease=3.0, drop_dead=drop_dead).wait())
        await harness.sleep(1.0)
        machine.stall(10.0)
        with pytest.raises(LeaseLost if drop_dead else BrokenBarrier):
            await job.result()

    harness.run(body)


def test_who_waits_for_longer_than_the_rounds_are_kept_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier_members, "ROUNDS_TTL", 20.0)
    monkeypatch.setattr(barrier_members, "REWRITE_AFTER", 5.0)

    async def body(harness: Harness) -> None:
        memory = Memory("patience")
        one, other = (harness.client(memory).barrier("a", 2, lease=LEASE) for _ in range(2))
        waits = harness.spawn(one.wait)
        await harness.sleep(100.0)
        assert await other.wait() == 1
        assert await waits.result() == 0

    SimulatedHarness().run(body)


@pytest.mark.parametrize("leaving", [False, True], ids=["waiting", "leaving"])
def test_what_the_store_has_forgotten_is_broken(monkeypatch: pytest.MonkeyPatch, leaving: bool) -> None:
    monkeypatch.setattr(barrier_members, "ROUNDS_TTL", 5.0)

    async def body(harness: Harness) -> None:
        one, other = barriers(harness, 2, 2)

        async def enter_and_stay() -> None:
            await one.enter()
            await harness.sleep(20.0)

        stays = harness.spawn(enter_and_stay)
        if leaving:
            await other.enter()
        with pytest.raises(BrokenBarrier, match="the store has forgotten it"):
            await (other.leave() if leaving else stays.result())
        if leaving:
            await stays.result()

    SimulatedHarness().run(body)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_leave_for_its_parent() -> None:
    with Client(Memory("barrier-fork")) as client:
        barrier = client.barrier("a", 1)
        barrier.enter()
        pid = os.fork()
        if pid == 0:
            try:
                barrier.leave()
            except LeaseLost:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        barrier.leave()
        assert not barrier.broken()


def test_the_dead_who_have_gone_meanwhile_are_no_longer_buried() -> None:
    rounds = rounds_of.arrive(Rounds(3), "one", stays=False)
    assert rounds_of.drop_dead_members(rounds, ["two"], "died") is None
    dropped = rounds_of.drop_dead_members(rounds, ["one", "two"], "died")
    assert dropped is not None
    assert dropped.broken == "died"


def test_what_is_no_barrier_is_not_read_as_one(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(Memory(f"barrier-{next(numbers)}"))
        core = client.blocking._core if hasattr(client, "blocking") else client
        await core.store.compare_and_set("barrier/a", Change(b"x"))
        with pytest.raises(Exception, match="the cell 'barrier/a' holds something else"):
            await client.barrier("a", 2).n_waiting()
        await core.store.compare_and_set("barrier/b", Change(b"s\x00\x00{"))
        with pytest.raises(Exception, match="the cell 'barrier/b' holds something else"):
            await client.barrier("b", 2).n_waiting()

    harness.run(body)

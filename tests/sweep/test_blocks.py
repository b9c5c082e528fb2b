"""A loss cancels an `async with` block, which then raises LeaseLost.

An error of the body, and a cancellation by the user, are raised instead.
"""
# ruff: noqa: PT012 the tests are about whole blocks

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost, NotHeld
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness, SimulatedHarness

Break = Callable[[AsyncHold], Awaitable[None]]


@pytest.fixture(params=[AsyncioHarness, SimulatedHarness], ids=lambda kind: kind.name)
def harness(request: pytest.FixtureRequest) -> Harness:
    return request.param()


def lose(hold: AsyncHold) -> None:
    hold._lease.mark_lost("the test said so")


def later(harness: Harness, seconds: float, act: Callable[[], object]) -> Any:
    async def work() -> None:
        await harness.sleep(seconds)
        act()

    return harness.spawn(work)


def run(harness: Harness, body: Callable[[Harness, AsyncClient], Awaitable[None]]) -> None:
    async def whole(harness: Harness) -> None:
        client = harness.client(Memory("blocks"))
        await body(harness, client)
        assert await client.holds() == []

    harness.run(whole)


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_a_lost_lease_cancels_the_block(harness: Harness, kind: str) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        start = harness.now()
        with pytest.raises(LeaseLost, match="the test said so"):
            async with getattr(client, kind)("a") as hold:
                later(harness, 0.05, lambda: lose(hold))
                await harness.sleep(10)
                pytest.fail("the block ran on")
        assert harness.now() - start < 1
        await harness.sleep(0.02)  # the task itself is not cancelled
        await harness.sleep(0.1)  # the release of the lost lease arrives

    run(harness, body)


def test_an_expired_lease_cancels_the_block(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        start = harness.now()
        with pytest.raises(LeaseLost, match="expired"):
            async with client.lock("a", lease=0.2, renew=False):
                await harness.sleep(10)
        assert harness.now() - start < 0.2 + 0.3
        await harness.sleep(0.05)

    run(harness, body)


def test_an_error_of_the_body_is_raised_instead_of_the_loss(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        with pytest.raises(ValueError, match="mine"):
            async with client.lock("a") as hold:
                lose(hold)
                raise ValueError("mine")
        with pytest.raises(ValueError, match="mine"):
            async with client.lock("a") as hold:
                later(harness, 0.01, lambda: lose(hold))
                try:
                    await harness.sleep(10)
                finally:
                    raise ValueError("mine")
        await harness.sleep(0.1)

    run(harness, body)


def test_the_loss_is_raised_if_the_body_suppresses_the_cancellation(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        with pytest.raises(LeaseLost):
            async with client.lock("a") as hold:
                later(harness, 0.01, lambda: lose(hold))
                try:
                    await harness.sleep(10)
                except asyncio.CancelledError:
                    pass
        await harness.sleep(0.05)

    run(harness, body)


def test_the_loss_is_raised_at_the_end_if_the_body_leaves_by_itself(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        with pytest.raises(LeaseLost):
            async with client.lock("a", lease=0.1, renew=False) as hold:
                while not hold.lost:
                    await harness.sleep(0)
                    if harness.name == "simulated":
                        await harness.sleep(0.01)
        await harness.sleep(0.05)

    run(harness, body)


@pytest.mark.parametrize("order", ["loss first", "cancel first", "cancel only"])
def test_a_cancellation_by_the_user_is_not_suppressed(harness: Harness, order: str) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        inside = harness.event()
        holds: list[AsyncHold] = []

        async def work() -> None:
            async with client.lock("a") as hold:
                holds.append(hold)
                inside.set()
                await harness.sleep(10)

        job = harness.spawn(work)
        await inside.wait(1)
        acts: list[Callable[[], object]] = [lambda: lose(holds[0]), job.cancel]
        if order != "loss first":
            acts.reverse()
        for act in acts[: 1 if order == "cancel only" else 2]:
            act()
        await job.join()
        assert isinstance(job.exception(), asyncio.CancelledError)
        await harness.sleep(0.05)

    run(harness, body)


def test_nested_blocks_of_one_rlock_raise_the_loss_once_and_uncancel(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        seen = []
        with pytest.raises(LeaseLost):
            async with client.rlock("a") as hold:
                try:
                    async with client.rlock("a"):
                        later(harness, 0.01, lambda: lose(hold))
                        await harness.sleep(10)
                except BaseException as error:
                    seen.append(type(error))
                    raise
        assert len(seen) == 1
        await harness.sleep(0.05)  # no cancellation is left over

    run(harness, body)


def test_nested_blocks_of_one_hold_raise_the_loss_once_and_uncancel(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        with pytest.raises(LeaseLost, match="the test said so"):
            async with client.lock("a") as hold, hold:
                later(harness, 0.01, lambda: lose(hold))
                await harness.sleep(10)
        await harness.sleep(0.05)  # no cancellation is left over

    run(harness, body)


def test_two_nested_locks_are_lost_at_the_same_time(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        with pytest.raises(LeaseLost):
            async with client.lock("a") as a, client.lock("b") as b:
                later(harness, 0.01, lambda: (lose(a), lose(b)))
                await harness.sleep(10)
        await harness.sleep(0.05)

    run(harness, body)


def test_the_inner_of_two_locks_is_lost(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        async with client.lock("a") as a:
            with pytest.raises(LeaseLost, match="'b'"):
                async with client.lock("b") as b:
                    later(harness, 0.01, lambda: lose(b))
                    await harness.sleep(10)
            a.raise_if_lost()
            await harness.sleep(0.05)

    run(harness, body)


def test_the_outer_of_two_locks_is_lost(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        with pytest.raises(LeaseLost, match="'a'"):
            async with client.lock("a") as a, client.lock("b"):
                later(harness, 0.01, lambda: lose(a))
                await harness.sleep(10)
        assert not await client.lock("b").locked()
        await harness.sleep(0.05)

    run(harness, body)


def test_a_block_does_not_begin_with_a_hold_of_which_a_part_was_released(harness: Harness) -> None:
    """The loss of one part is the loss of all."""

    async def body(harness: Harness, client: AsyncClient) -> None:
        part = client.rlock("a")
        hold = await client.multi_lock([part, client.lock("b")]).acquire()
        assert hold is not None
        await part.release()
        with pytest.raises(LeaseLost, match="'a' was lost"):
            async with hold:
                pytest.fail("the block began")

    run(harness, body)


def test_a_block_does_not_begin_with_a_lost_hold(harness: Harness) -> None:
    async def body(harness: Harness, client: AsyncClient) -> None:
        hold = await client.lock("a").acquire()
        assert hold is not None
        lose(hold)
        with pytest.raises(LeaseLost):
            async with hold:
                pytest.fail("the block ran unprotected")
        again = await client.lock("b").acquire()
        assert again is not None
        await again.release()
        with pytest.raises(NotHeld):
            async with again:
                pytest.fail("the block ran unprotected")
        await harness.sleep(0.05)

    run(harness, body)


def test_a_blocking_block_does_not_begin_with_a_lost_hold() -> None:
    with Client(Memory("blocks")) as client:
        hold = client.lock("a").acquire()
        assert hold is not None
        lose(hold._core)
        with pytest.raises(LeaseLost), hold:
            pytest.fail("the block ran unprotected")


def test_a_blocking_block_raises_the_loss_at_its_end_and_at_every_check() -> None:
    with Client(Memory("blocks")) as client:
        with pytest.raises(LeaseLost), client.lock("a") as hold:
            lose(hold._core)
            with pytest.raises(LeaseLost):
                hold.raise_if_lost()
        with pytest.raises(ValueError, match="mine"), client.lock("b") as hold:
            lose(hold._core)
            raise ValueError("mine")


def test_a_block_may_end_in_another_task(harness: Harness) -> None:
    """Fixtures and exit stacks may do this."""

    async def body(harness: Harness, client: AsyncClient) -> None:
        lock = client.lock("a")
        await harness.spawn(lock.__aenter__).result()
        await harness.spawn(lambda: lock.__aexit__(None, None, None)).result()
        assert not await lock.locked()
        with pytest.raises(NotHeld, match="did not begin it"):
            await lock.__aexit__(None, None, None)

    run(harness, body)

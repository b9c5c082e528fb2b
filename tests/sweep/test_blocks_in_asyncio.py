"""`async with` and loss in asyncio's own company: timeouts, task groups, other threads."""
# ruff: noqa: PT012 what is tested are whole blocks

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from test_blocks import lose

from leasehold import AsyncClient, AsyncHold, LeaseLost
from leasehold.stores.memory import Memory


def aio(body: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with AsyncClient(Memory("blocks")) as client:
            await body(client)
            await asyncio.sleep(0.02)
            assert await client.holds() == []

    asyncio.run(whole())


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def test_a_timeout_around_the_block() -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), client.lock("a"):
                await asyncio.sleep(10)
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(1), client.lock("a") as hold:
                asyncio.get_running_loop().call_later(0.02, lose, hold)
                await asyncio.sleep(10)
        assert cancellations() == 0, "no cancellation is left over"

    aio(body)


def test_a_timeout_inside_the_block() -> None:
    async def body(client: AsyncClient) -> None:
        async with client.lock("a") as hold:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(10)
            hold.raise_if_lost()
        with pytest.raises(LeaseLost):
            async with client.lock("a") as hold, asyncio.timeout(1):
                asyncio.get_running_loop().call_later(0.02, lose, hold)
                await asyncio.sleep(10)
        assert cancellations() == 0, "no cancellation is left over"

    aio(body)


@pytest.mark.parametrize("outside", [True, False])
def test_a_timeout_and_a_loss_at_the_same_time(outside: bool) -> None:
    async def body(client: AsyncClient) -> None:
        def both(limit: asyncio.Timeout, hold: AsyncHold) -> None:
            limit.reschedule(asyncio.get_running_loop().time())
            asyncio.get_running_loop().call_soon(lose, hold)

        loop = asyncio.get_running_loop()
        if outside:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5) as limit, client.lock("a") as hold:
                    loop.call_later(0.02, both, limit, hold)
                    await asyncio.sleep(10)
        else:
            with pytest.raises((LeaseLost, TimeoutError)):
                async with client.lock("a") as hold, asyncio.timeout(5) as limit:
                    loop.call_later(0.02, both, limit, hold)
                    await asyncio.sleep(10)
        assert cancellations() == 0

    aio(body)


def test_a_task_group_inside_the_block_is_cancelled_with_it() -> None:
    async def body(client: AsyncClient) -> None:
        ended = []

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                ended.append(1)
                raise

        with pytest.raises(LeaseLost):
            async with client.lock("a") as hold, asyncio.TaskGroup() as group:
                group.create_task(work())
                group.create_task(work())
                asyncio.get_running_loop().call_later(0.02, lose, hold)
        assert ended == [1, 1]

    aio(body)


def test_a_loss_in_a_task_group_is_an_error_of_the_group() -> None:
    async def body(client: AsyncClient) -> None:
        async def work() -> None:
            async with client.lock("a") as hold:
                asyncio.get_running_loop().call_later(0.02, lose, hold)
                await asyncio.sleep(10)

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(work())
                group.create_task(asyncio.sleep(10))
        assert [type(error) for error in caught.value.exceptions] == [LeaseLost]

    aio(body)


def test_a_loss_told_from_another_thread() -> None:
    async def body(client: AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(LeaseLost):
            async with client.lock("a") as hold:
                await loop.run_in_executor(None, lose, hold)
                await asyncio.sleep(10)
        assert cancellations() == 0, "no cancellation is left over"

    aio(body)

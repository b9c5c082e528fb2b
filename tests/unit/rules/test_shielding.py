"""What is shielded begins, also if the program cancels all its tasks before it could."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold import AsyncClient, LeaseLost
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold.stores.memory import Memory


async def work(done: list[str]) -> None:
    done.append("begun")
    try:
        await asyncio.sleep(0.01)
    finally:
        done.append("ended")


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("turns", range(4))
def test_what_is_shielded_begins_though_all_tasks_are_cancelled_so_many_turns_after_its_caller(turns: int) -> None:
    """A task that is cancelled before its first step does nothing at all: it could not even undo what it is for."""
    done = list[str]()

    async def caller() -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await AsyncioRuntime().shield(work(done))
            done.append("not raised")

    async def body() -> None:
        task = asyncio.create_task(caller())
        await asyncio.sleep(0)
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        for each in others():
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not others()

    asyncio.run(body())
    assert done == ["begun", "ended", *["not raised"] * (turns == 0)]


@pytest.mark.parametrize("turns", range(4))
def test_what_is_shielded_begins_though_its_loop_is_about_to_end(turns: int) -> None:
    done = list[str]()

    async def body() -> None:
        task = asyncio.create_task(AsyncioRuntime().shield(work(done)))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(body())  # it cancels all that is left, and waits for that
    assert done == ["begun", "ended"]


@pytest.mark.parametrize("turns", range(6))
def test_holders_hear_of_a_close_though_all_tasks_are_cancelled_meanwhile(turns: int) -> None:
    told = list[LeaseLost]()

    async def body() -> None:
        client, looker = AsyncClient(Memory("told")), AsyncClient(Memory("told"))
        hold = await client.lock("a").acquire()
        assert hold is not None
        hold.on_lost(told.append)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        for each in others():
            each.cancel()
        await asyncio.wait([closing])
        assert await looker.holds() == []
        await looker.close()

    asyncio.run(body())
    assert len(told) == 1

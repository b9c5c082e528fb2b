"""Cancel an operation at every suspension, and all tasks a moment later, as many programs do to shut down.

What is shielded is then cancelled, too. It may have to be undone in the background, but nothing is left on the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from sweeping.operations import OPERATIONS, check_leftovers
from sweeping.suspensions import HOLD_UP, LEASE, Slow, nothing_is_left, outcome

from leasehold import AsyncClient, LeaseLost
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness

SOON = 2.0
"""Seconds in which the background has released all."""


def cancel_all_but(spared: Any, turns: int) -> None:
    """Cancel all other tasks after so many turns of the loop."""
    if turns:
        asyncio.get_running_loop().call_soon(cancel_all_but, spared, turns - 1)
        return
    for task in asyncio.all_tasks(asyncio.get_running_loop()) - {spared}:
        task.cancel()


class Both:
    """The current task; its cancellation is followed by that of all others."""

    def __init__(self, spared: Any, turns: int) -> None:
        self.spared, self.turns, self.task = spared, turns, asyncio.current_task()

    def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()
        cancel_all_but(self.spared, self.turns)


async def soon_nothing_is_left(client: AsyncClient, looker: AsyncClient) -> None:
    until = asyncio.get_running_loop().time() + SOON
    while asyncio.get_running_loop().time() < until:
        with contextlib.suppress(AssertionError):
            return await nothing_is_left(client, looker)
        await asyncio.sleep(0.01)
    await nothing_is_left(client, looker)


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_left_of_an_operation_that_is_cancelled_with_all_tasks(name: str, turns: int) -> None:
    async def body(harness: Harness) -> None:
        memory, me, counted = Memory(f"all-{name}-{turns}"), asyncio.current_task(), 0
        looker = harness.client(memory)
        for at in range(1000):
            client = harness.client(Slow(memory))
            reached = await outcome(harness, client, name, at, lambda: Both(me, turns))
            await soon_nothing_is_left(client, looker)
            counted = await check_leftovers(looker, name, counted)
            await client.close()
            if not reached:
                assert at >= HOLD_UP
                return
        raise AssertionError("it never ends")

    AsyncioHarness().run(body)


@pytest.mark.parametrize("steps", range(0, 30))
def test_a_close_that_is_cancelled_with_all_tasks_still_closes(steps: int) -> None:
    async def body(harness: Harness) -> None:
        told, me = list[LeaseLost](), asyncio.current_task()
        for turns in range(4):
            memory = Memory("closing")
            client, looker = harness.client(Slow(memory)), harness.client(memory)
            for name in "ab":
                hold = await client.lock(name, lease=LEASE).acquire()
                assert hold is not None
                hold.on_lost(told.append)
            task = asyncio.ensure_future(client.close())
            for _ in range(steps + 1):
                await asyncio.sleep(0)
            task.cancel()
            cancel_all_but(me, turns)
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert await looker.holds() == []
            assert len(told) == 2 * (turns + 1)

    AsyncioHarness().run(body)

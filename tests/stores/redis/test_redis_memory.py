"""What waiting tasks and held locks take of a client's memory, in bytes, which a busy machine does not change.

They are counted where they are allocated: the difference between so many of them and twice as many. The task itself and
what the user's code in it takes are included.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient
from leasehold.stores.redis.scripts import command_templates
from support.stores.crowds import queued

MANY = 500

MOST = {"acquire": 3_300, "block": 3_300, "held": 1_900}
"""Bytes for each. A task that waits for nothing but a future takes 1,000 of them."""


async def bytes_each(add: Callable[[int], Awaitable[None]], first: int) -> float:
    """Return what each takes that ``add`` adds, after the first ones."""
    await add(first)
    tracemalloc.start()
    try:
        await add(MANY)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await add(MANY)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / MANY
    finally:
        tracemalloc.stop()


async def wait_by_acquire(locks: AsyncClient) -> None:
    lock = locks.lock("x")
    if await lock.acquire():
        await lock.release()


async def wait_in_a_block(locks: AsyncClient) -> None:
    async with locks.lock("x"):
        pass


@pytest.mark.parametrize("how", ["acquire", "block"])
def test_a_waiting_task_takes_little_memory(redis_server: Any, namespace: str, how: str) -> None:
    wait = {"acquire": wait_by_acquire, "block": wait_in_a_block}[how]

    async def body() -> float:
        async with AsyncClient.from_url(redis_server.url, namespace=namespace) as locks:
            tasks: list[asyncio.Task[None]] = []

            async def add(count: int) -> None:
                tasks.extend([asyncio.create_task(wait(locks)) for _ in range(count)])
                await queued(locks, "x", len(tasks))

            async with locks.lock("x"):
                each = await bytes_each(add, first=100)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            return each

    each = asyncio.run(body())
    print(f"{each:.0f} bytes each")
    assert each <= MOST[how]


def test_a_held_lock_takes_little_memory(redis_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_templates, "MOST", 1)  # else it keeps those of some thousand names

    async def body() -> float:
        async with AsyncClient.from_url(redis_server.url, namespace=namespace) as locks:
            held: list[Any] = []

            async def add(count: int) -> None:
                for _ in range(count):
                    lock = locks.lock(f"lock:{len(held)}")
                    held.append((lock, await lock.acquire()))

            each = await bytes_each(add, first=600)  # the keys of 512 names are cached
            for lock, _ in held:
                await lock.release()
            return each

    each = asyncio.run(body())
    print(f"{each:.0f} bytes each")
    assert each <= MOST["held"]

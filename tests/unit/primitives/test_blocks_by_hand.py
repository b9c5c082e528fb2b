"""Blocks that are entered by hand while an exit stack has a hold that was pushed, and by several tasks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress
from types import TracebackType

from leasehold import AsyncClient, AsyncHold, AsyncLock, Client, Hold, LeaseLost, Lock


class Wrapped:
    """A context manager of the user around a lock, of either flavor."""

    def __init__(self, lock: Lock | AsyncLock) -> None:
        self.lock = lock

    def __enter__(self) -> Hold:
        assert isinstance(self.lock, Lock)
        return self.lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert isinstance(self.lock, Lock)
        self.lock.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncHold:
        assert isinstance(self.lock, AsyncLock)
        return await self.lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert isinstance(self.lock, AsyncLock)
        await self.lock.__aexit__(kind, error, trace)


def test_by_threads() -> None:
    with Client.from_url("memory:") as client:
        with ExitStack() as stack:
            pushed = client.lock("a").acquire()
            stack.push(pushed)
            with Wrapped(client.lock("b")) as hold:
                hold.raise_if_lost()
            assert client.inspect("b") is None
            assert client.inspect("a") is not None
        assert client.holds() == []


def test_by_tasks() -> None:
    async def main() -> None:
        async with AsyncClient.from_url("memory:") as client:
            async with AsyncExitStack() as stack:
                pushed = await client.lock("a").acquire()
                stack.push_async_exit(pushed)
                async with Wrapped(client.lock("b")) as hold:
                    hold.raise_if_lost()
                assert await client.inspect("b") is None
                assert await client.inspect("a") is not None
            assert await client.holds() == []

    asyncio.run(main())


def test_locks_that_are_entered_by_hand_and_pushed_are_released_each_at_its_own_end() -> None:
    """As the stack pushes the first, it looks up its exit: that is not the exit of the second."""
    with Client.from_url("memory:") as client:
        stack = ExitStack()
        for name in "abc":
            lock = client.lock(name)
            lock.__enter__().raise_if_lost()
            stack.push(lock)
        stack.enter_context(client.lock("d"))
        for left in ("abcd", "abc", "ab", "a"):
            assert "".join(info.name for info in client.holds()) == left
            stack._exit_callbacks.pop()[1](None, None, None)  # type: ignore[attr-defined] # as its close does
        assert client.holds() == []


def test_async_locks_that_are_entered_by_hand_and_pushed_are_released_each_at_its_own_end() -> None:
    async def main() -> None:
        async with AsyncClient.from_url("memory:") as client:
            async with AsyncExitStack() as stack:
                for name in "abc":
                    lock = client.lock(name)
                    (await lock.__aenter__()).raise_if_lost()
                    stack.push_async_exit(lock)
                await stack.enter_async_context(client.lock("d"))
                assert [info.name for info in await client.holds()] == list("abcd")
            assert await client.holds() == []

    asyncio.run(main())


def test_tasks_in_blocks_of_one_hold_may_end_them_in_any_order() -> None:
    async def body(hold: AsyncHold, cancelled: list[int]) -> None:
        try:
            async with hold:
                await asyncio.sleep(60)
        except LeaseLost:
            task = asyncio.current_task()
            assert task is not None
            cancelled.append(task.cancelling())

    async def main() -> None:
        async with AsyncClient.from_url("memory:") as client:
            hold, cancelled = await client.lock("a").acquire(), list[int]()
            assert hold is not None
            tasks = [asyncio.create_task(body(hold, cancelled)) for _ in range(2)]
            await asyncio.sleep(0)
            assert await client.force_release("a", hold.token)
            with suppress(LeaseLost):
                await hold.renew()
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert cancelled == [0, 0]

    asyncio.run(main())

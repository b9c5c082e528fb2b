"""A block that is entered by hand, while an exit stack has a hold that was pushed: each ends its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType

from leasehold import AsyncClient, AsyncHold, AsyncLock, Client, Hold, Lock


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

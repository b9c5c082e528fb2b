"""What the console asks a client: the same five questions for both flavors.

An `AsyncClient` is awaited in the console's event loop. A blocking `Client` is asked in a thread, so that the event
loop goes on serving while the store answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from leasehold import AsyncClient, Client
from leasehold._engine.retry import asked
from leasehold._runtimes.base import run_sync
from leasehold.store_api import Finding, View

T = TypeVar("T")

ANSWER_WITHIN = 10.0
"""Seconds after which a look counts as failed, for a store that neither answers nor breaks the connection."""


class Source(Protocol):
    """A client as the console sees it."""

    @property
    def place(self) -> tuple[str, str]:
        """The store's URL without secrets, and the namespace."""
        ...

    async def views(self) -> list[View]:
        """Return all names that are held, waited for or kept free."""
        ...

    async def findings(self) -> list[Finding]:
        """Return what `leasehold doctor` finds."""
        ...

    async def leader_value(self, election: str, token: int) -> tuple[bool, Any]:
        """Return whether the leader with ``token`` still leads, and the value that it proclaimed last."""
        ...

    async def force_release(self, name: str, token: int) -> bool:
        """Break a lock; return whether that holder was there."""
        ...


def source_of(client: AsyncClient | Client) -> Source:
    """Return what the console asks."""
    if isinstance(client, AsyncClient):
        return AwaitedSource(client)
    if isinstance(client, Client):  # pyright: ignore[reportUnnecessaryIsInstance]
        return ThreadSource(client)
    raise TypeError(
        f"leasehold.ui.app takes a leasehold.AsyncClient or a leasehold.Client, not a {type(client).__name__}; write "
        "leasehold.ui.app(AsyncClient.from_url(…))"
    )


class AwaitedSource:
    """An asyncio client, awaited in the event loop to which it belongs."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @property
    def place(self) -> tuple[str, str]:
        return self._client._engine.origin

    async def views(self) -> list[View]:
        async with asyncio.timeout(ANSWER_WITHIN):
            return await all_views(self._client)

    async def findings(self) -> list[Finding]:
        return await self._client.diagnose()

    async def leader_value(self, election: str, token: int) -> tuple[bool, Any]:
        leader = await self._client.election(election).leader()
        return (True, leader.value) if leader is not None and leader.token == token else (False, None)

    async def force_release(self, name: str, token: int) -> bool:
        return await self._client.force_release(name, token)


class ThreadSource:
    """A blocking client, asked in a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def place(self) -> tuple[str, str]:
        return self._client._core._engine.origin

    async def views(self) -> list[View]:
        return await in_thread(lambda: all_views(self._client._core))

    async def findings(self) -> list[Finding]:
        return await asyncio.to_thread(self._client.diagnose)

    async def leader_value(self, election: str, token: int) -> tuple[bool, Any]:
        leader = await asyncio.to_thread(lambda: self._client.election(election).leader())
        return (True, leader.value) if leader is not None and leader.token == token else (False, None)

    async def force_release(self, name: str, token: int) -> bool:
        return await asyncio.to_thread(self._client.force_release, name, token)


async def all_views(client: AsyncClient) -> list[View]:
    """Return the views from which `AsyncClient.holds` makes its list: they have the modes of holders, too."""
    client._engine.ready()
    return await asked(client.store.inspect(""))


async def in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run in a thread a coroutine of the blocking runtime, which never suspends."""
    return await asyncio.to_thread(lambda: run_sync(work()))

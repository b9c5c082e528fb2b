"""The interface of a lock that the scenarios use. It is small, so that each library's adapter fits on a page.

An adapter module has `VARIANTS`, by flavor. The client of a blocking variant has plain methods. The client of an
asyncio variant has the same methods as coroutine functions, but `lock` is plain in both. Some libraries keep state for
each thread or each context. So each lock object has an actor, which is the only thread or the only context that uses
it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """What a client connects to: the port of 127.0.0.1 of a server or of its proxy; or a folder, for file locks."""

    port: int
    folder: str

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@dataclass(frozen=True, slots=True)
class Variant:
    """One flavor of a library's lock.

    Attributes:
        open: makes a client; a coroutine function in asyncio.
        backend: ``redis``, ``zookeeper`` or ``file``.
        claim: bytes that are in every acquire request, and in no other request.
        leave: bytes that are in every release request, and in no other request.
        wakes: bytes that are in every request to be woken, and in no other; empty if waiters poll.
        granted: bytes in the reply to an acquire request; empty if that reply is the first.
        leases: whether a lock can have a lease.

    """

    open: Callable[[Place], Any]
    backend: str = "redis"
    claim: bytes = b"\r\nNX\r\n"
    leave: bytes = b"EVAL"
    wakes: bytes = b""
    granted: bytes = b""
    leases: bool = True


class Raw:
    """Defaults for the members that a lock object need not have."""

    @property
    def token(self) -> int | None:
        """The fencing token of the hold; None if there is none."""
        return None

    @property
    def told(self) -> bool:
        """Whether the lock notified its holder of a loss."""
        return False

    def alongside(self) -> Any:
        """Return the same lock object, as another thread or task uses it."""
        return self


class Actor:
    """A thread, or the tasks of one context."""

    def __init__(self, blocking: bool) -> None:
        self._thread = ThreadPoolExecutor(1) if blocking else None
        self._context = contextvars.copy_context()

    def start(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Begin a call."""
        if self._thread is not None:
            return asyncio.get_running_loop().run_in_executor(self._thread, call, *args)
        return asyncio.get_running_loop().create_task(call(*args), context=self._context)

    def close(self) -> None:
        """End the thread after its current call."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)


class Lock:
    """A lock object and its actor."""

    def __init__(self, raw: Any, actor: Actor) -> None:
        self.raw = raw
        self.actor = actor

    async def acquire(self, wait: float | None) -> bool:
        """Acquire; 0 tries once, None waits for ever."""
        return bool(await self.begin_acquire(wait))

    def begin_acquire(self, wait: float | None) -> asyncio.Future[Any]:
        return self.actor.start(self.raw.acquire, wait)

    async def release(self) -> Any:
        return await self.begin_release()

    def begin_release(self) -> asyncio.Future[Any]:
        return self.actor.start(self.raw.release)

    async def valid(self) -> bool | None:
        """Return whether the lock object reports that it is still held; None if it has no such method."""
        method = getattr(self.raw, "valid", None)
        return None if method is None else bool(await self.actor.start(method))

"""What a lock must offer to be put through the scenarios: small enough that each library's file fits on a page.

A library's module offers `VARIANTS`, by flavor. A client of a blocking variant has plain methods, one of an asyncio
variant the same as coroutines; `lock` is plain in both. Each lock object is used by an actor: a thread of its own, or
tasks that share a context of their own, so that what a library keeps by thread or by context is kept rightly.
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
    """Where a client works: the port of 127.0.0.1 that a server or a proxy before it listens on, and a folder."""

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
        claim: bytes that only a request to acquire has, and that every such request has.
        leave: the same of a release.
        wakes: the same of a request to be woken; empty if a waiter polls.
        granted: bytes that a reply to a request to acquire has; empty if no other replies come before.
        leases: a lock can be held for a number of seconds.

    """

    open: Callable[[Place], Any]
    backend: str = "redis"
    claim: bytes = b"\r\nNX\r\n"
    leave: bytes = b"EVAL"
    wakes: bytes = b""
    granted: bytes = b""
    leases: bool = True


class Raw:
    """What a lock object need not have."""

    @property
    def token(self) -> int | None:
        """The fencing token of the hold; None if there is none."""
        return None

    @property
    def told(self) -> bool:
        """Whether the holder was told of a loss without asking."""
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
        """End the thread, once it is free."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)


class Lock:
    """A lock object and who uses it."""

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
        """Ask the lock whether it is still held by its holder; None if it cannot be asked."""
        ask = getattr(self.raw, "valid", None)
        return None if ask is None else bool(await self.actor.start(ask))

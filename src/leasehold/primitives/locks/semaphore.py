"""The semaphore: at most so many permits are held at a time. `AsyncSemaphore` and its sync facade `Semaphore`."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from leasehold._engine.engine import Engine
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocks import Block, opened
from leasehold._validate import Seconds
from leasehold.primitives.bases import AsyncDecorating, AsyncNamed, DecoratingFacade
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.primitives.locks.hold_list import HoldList
from leasehold.primitives.locks.lock import AsyncLock, Mutex, held_modes
from leasehold.primitives.locks.options import Cancellation, Options

MOST = 1_000_000
"""The largest number of permits: every store counts that many exactly."""


def permits_of(value: object, what: str = "permits", most: int = MOST) -> int:
    """Check a number of permits: a whole number from 1 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not 1 <= value <= most:
        raise ValueError(f"{what} must be from 1 to {most}, not {value}")
    return value


class AsyncSemaphorePermits(AsyncLock):
    """A number of permits of one semaphore, used like a lock: all of them or none."""

    def __init__(self, engine: Engine, name: str, options: Options, n: int, hold_list: HoldList) -> None:
        mode = replace(options.terms.mode, permits=n)
        super().__init__(engine, name, replace(options, terms=replace(options.terms, mode=mode)))
        self._be_shared()
        self._hold_list = hold_list  # shared by all sizes: `release` releases what was acquired last


class AsyncSemaphore(AsyncNamed, AsyncDecorating):
    """At most ``permits`` permits are held at a time, by all clients of the name. Each hold has a lease and a token.

    All clients of a name must pass the same number. While there is no holder and no waiter, the number may change.

    Example:
        ```python
        partner = client.semaphore("partner-api", 10)
        async with partner:
            print("one of ten")
        async with partner.permits(3):
            print("three of ten")
        ```
    """

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._hold_list = HoldList()
        self._one = AsyncSemaphorePermits(engine, name, options, 1, self._hold_list)
        self._sizes = {1: self._one}
        self._name = name

    @property
    def limit(self) -> int:
        """The number of permits."""
        return self._options.terms.mode.limit

    def permits(self, n: int) -> AsyncSemaphorePermits:
        """Return an object for ``n`` permits that is used like a lock: ``async with sem.permits(3):``.

        Raises:
            ValueError: ``n`` is not from 1 to `limit`.
        """
        n = permits_of(n, "n", self.limit)
        if n not in self._sizes:
            self._sizes[n] = AsyncSemaphorePermits(self._engine, self.name, self._options, n, self._hold_list)
        return self._sizes[n]

    async def acquire(
        self, n: int = 1, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> AsyncHold | None:
        """Acquire ``n`` permits, all or none; return None if they were not free in time.

        Args:
            n: how many permits, at most `limit`.
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes the semaphore's own ``timeout``, -1 waits for ever, 0 tries
                once.
            cancel: ends the wait from another thread, task or signal handler; then it returns None.

        Returns:
            The hold of all ``n``; None if they were not free in time, or the wait was cancelled.

        Raises:
            ValueError, TypeError: ``n`` is not from 1 to `limit`, or another argument is out of its bounds, or
                ``blocking=False`` has a timeout, too.
            StoreUnavailable: the store did not answer; with a timeout, raised at most two seconds after it.
            LeaseLost: they were granted after their deadline.
            NameInUse: the name is in use as another primitive, or with another number of permits.
            Unsupported: the store cannot promise this, as only the server could tell.
            RuntimeError: the client is closed.
        """
        return await self.permits(n).acquire(blocking, timeout, cancel)

    async def release(self) -> None:
        """Release what the calling task acquired last through this semaphore, all permits of that hold.

        Raises:
            NotHeld: it holds nothing.
            LeaseLost: the lease was lost before.
        """
        await self._one.release()

    def owned(self) -> bool:
        """Return whether the calling task holds permits, acquired through this semaphore and not lost."""
        return self._one.owned()

    async def locked(self) -> bool:
        """Return whether no permit is free now.

        Raises:
            StoreUnavailable: the store did not answer.
            NameInUse: the name is in use as another primitive, or with another number of permits.
        """
        return await self._one.locked()

    async def available(self) -> int:
        """Return how many permits are free now.

        Raises:
            StoreUnavailable: the store did not answer.
            NameInUse: the name is in use as another primitive, or with another number of permits.
        """
        held = await held_modes(self._engine, self.name, self._options.terms.mode)
        return max(0, self.limit - sum(mode.permits for mode in held))

    def __aenter__(self) -> Coroutine[Any, Any, AsyncHold]:
        return self._enter(opened(self))

    def _enter(self, block: Block | None) -> Coroutine[Any, Any, AsyncHold]:
        return self._one._enter(block)

    def _exit(self, block: Block, error: BaseException | None) -> Coroutine[Any, Any, None]:
        return self._one._exit(block, error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.limit}>"


class SemaphorePermits(Mutex):
    """A number of permits of one semaphore, used like a lock: all of them or none."""


class Semaphore(DecoratingFacade[AsyncSemaphore]):
    """At most ``permits`` permits are held at a time, by all clients of the name. Each hold has a lease and a token.

    All clients of a name must pass the same number. While there is no holder and no waiter, the number may change.

    Example:
        ```python
        partner = client.semaphore("partner-api", 10)
        with partner:
            print("one of ten")
        with partner.permits(3):
            print("three of ten")
        ```
    """

    @property
    def limit(self) -> int:
        """The number of permits."""
        return self._core.limit

    def permits(self, n: int) -> SemaphorePermits:
        """Return an object for ``n`` permits that is used like a lock. As `AsyncSemaphore.permits`."""
        return SemaphorePermits(self._core.permits(n))

    def acquire(
        self, n: int = 1, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> Hold | None:
        """Acquire ``n`` permits, all or none; return None if they were not free in time.

        Args:
            n: how many permits, at most `limit`.
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes the semaphore's own ``timeout``, -1 waits for ever, 0 tries
                once.
            cancel: ends the wait from another thread or signal handler; then it returns None.

        Raises: as `AsyncSemaphore.acquire`.
        """
        return self.permits(n).acquire(blocking, timeout, cancel)

    def release(self) -> None:
        """Release what the calling thread acquired last through this semaphore. As `AsyncSemaphore.release`."""
        run_sync(self._core.release())

    def owned(self) -> bool:
        """Return whether the calling thread holds permits, acquired through this semaphore and not lost."""
        return self._core.owned()

    def locked(self) -> bool:
        """Return whether no permit is free now.

        Raises:
            StoreUnavailable: the store did not answer.
            NameInUse: the name is in use as another primitive, or with another number of permits.
        """
        return run_sync(self._core.locked())

    def available(self) -> int:
        """Return how many permits are free now.

        Raises:
            StoreUnavailable: the store did not answer.
            NameInUse: the name is in use as another primitive, or with another number of permits.
        """
        return run_sync(self._core.available())

    def __enter__(self) -> Hold:
        return Hold(run_sync(self._core._enter(opened(self))))

"""Optimistic locking: a value with a version. `AsyncVersionedCell` and its sync facade `VersionedCell`.

No writer waits: it names the version that it read, and the second of two writers gets a conflict. This suits values
with rare conflicts. Where many clients write the same value all the time, a lock costs less than the retries.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, NamedTuple, TypeVar

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._runtimes.base import call_user_code, resolved, run_sync
from leasehold._validate import Seconds
from leasehold.errors import Conflict
from leasehold.primitives.bases import AsyncNamed, NamedFacade, refuse_coroutines
from leasehold.primitives.locks.options import VERSIONED_TTL
from leasehold.primitives.values.register import Body, Record, Register

T = TypeVar("T")

Update = Callable[[T | None], T]
"""Gets the value (None if there is none) and returns the new one."""

AsyncUpdate = Callable[[T | None], T | Coroutine[Any, Any, T]]
"""As `Update`, or a coroutine function."""

LONGEST_TTL = 10 * VERSIONED_TTL

FIRST_PAUSE = 0.004
"""Longest pause in seconds before the second attempt of an update; each further pause may be twice as long."""

LONGEST_PAUSE = 0.25


class Versioned(NamedTuple, Generic[T]):
    """A value and its version. Version 0, with the value None, means that there is none yet."""

    value: T
    version: int


class AsyncVersionedCell(AsyncNamed, Generic[T]):
    """A value with a version, for compare-and-set. Generic in the value: ``views: AsyncVersionedCell[int]``.

    A value is bytes, returned as they are, or JSON, returned as JSON decodes it (a tuple as a list).
    A value has at most 64 KiB.

    Example:
        ```python
        views = client.versioned("views")
        await views.update(lambda count: (count or 0) + 1)
        value, version = await views.get()
        await views.put(0, if_version=version)
        ```
    """

    def __init__(self, engine: Engine, name: str, ttl: Seconds) -> None:
        self._engine = engine
        self._register = Register(engine, "versioned", name)
        self._ttl = _validate.above_zero(ttl, "ttl", LONGEST_TTL)
        self._name = name

    async def get(self) -> Versioned[T | None]:
        """Return the value and its version; None and 0 if there is none.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        seen = await self._register.read()
        return Versioned(seen.value, seen.version)

    async def put(self, value: T, if_version: int | None = None, fence: int | None = None) -> int:
        """Write a value.

        Args:
            value: what JSON can express, or bytes.
            if_version: write only if the value still has this version; 0: only if there is none. None writes always.
                Versions begin again at 1 when the value has expired: a version that is older than ``ttl`` may match.
            fence: the token of the lock under which it is written: refused if a later holder has written.

        Returns:
            The new version.

        Raises:
            Conflict: the value has another version; the error has that version and value.
            LeaseLost: a later holder than that of ``fence`` has written.
            ValueError: the value is too large, or the store cannot keep so large a fence (SQL and SQLite: 2**63 - 1).
            TypeError: JSON cannot express the value, and it is not bytes.
            StoreUnavailable: no answer; with ``unknown`` it may have been written all the same.
        """
        self._engine.ready()
        body = Body.of(value)
        _check_count(if_version, "if_version", 0)
        _check_count(fence, "fence", 1)
        after = await self._register.write(body, ttl=self._ttl, if_version=if_version, fence=fence)
        if not after.changed:
            raise self._conflict(after, f"it has version {after.version}, not {if_version}", 0.0)
        return after.version

    async def update(self, change: AsyncUpdate[T], timeout: Seconds | None = None) -> Versioned[T]:
        """Read, call ``change(value)``, and write what it returns; retry from the start if another client wrote.

        Args:
            change: gets the value (None if there is none) and returns the new one. It may be called several times, so
                it should have no other effect. Under asyncio it may be a coroutine function.
            timeout: seconds after which no further attempt is made; None means no limit.

        Returns:
            The new value and its version.

        Raises:
            Conflict: another client wrote first at each attempt until the timeout.
            StoreUnavailable: no answer; with ``unknown`` it may have been written all the same.
            TypeError: the function returned None, or what JSON cannot express and is not bytes.
            ValueError: the new value is too large.
        """
        self._engine.ready()
        runtime, limit, pause = self._engine.runtime, _validate.timeout(timeout), FIRST_PAUSE
        start = runtime.now()
        while True:
            seen = await self._register.read()
            value = await resolved(call_user_code(change, seen.value))
            if value is None:
                raise TypeError("the change returned None; it must return the new value (to store null, use put)")
            after = await self._register.write(Body.of(value), ttl=self._ttl, if_version=seen.version)
            if after.changed:
                return Versioned(after.value, after.version)
            waited = runtime.now() - start
            if limit is not None and waited >= limit:
                raise self._conflict(after, "others changed it at each attempt", waited)
            left = pause if limit is None else limit - waited
            await runtime.sleep(min(left, pause * runtime.jitter()))  # random: so that they do not collide again
            pause = min(2 * pause, LONGEST_PAUSE)

    def _conflict(self, seen: Record, why: str, waited: float) -> Conflict:
        return Conflict(
            f"the value {self.name!r} was not written: {why}",
            value=seen.value,
            version=seen.version,
            name=self.name,
            owner=str(self._engine.owner),
            waited=waited,
        )


class VersionedCell(NamedFacade[AsyncVersionedCell[T]], Generic[T]):
    """A value with a version, for compare-and-set. Generic in the value: ``views: VersionedCell[int]``.

    A value is bytes, returned as they are, or JSON, returned as JSON decodes it (a tuple as a list).
    A value has at most 64 KiB.

    Example:
        ```python
        views = client.versioned("views")
        views.update(lambda count: (count or 0) + 1)
        value, version = views.get()
        views.put(0, if_version=version)
        ```
    """

    def get(self) -> Versioned[T | None]:
        """Return the value and its version; None and 0 if there is none. As `AsyncVersionedCell.get`."""
        return run_sync(self._core.get())

    def put(self, value: T, if_version: int | None = None, fence: int | None = None) -> int:
        """Write a value; return its version.

        Args:
            value: what JSON can express, or bytes.
            if_version: write only if the value still has this version; 0: only if there is none. None writes always.
                Versions begin again at 1 when the value has expired: a version that is older than ``ttl`` may match.
            fence: the token of the lock under which it is written: refused if a later holder has written.

        Raises:
            Conflict: the value has another version; the error has that version and value.
            LeaseLost: a later holder than that of ``fence`` has written.
            ValueError: the value is too large, or the store cannot keep so large a fence (SQL and SQLite: 2**63 - 1).
            TypeError: JSON cannot express the value, and it is not bytes.
            StoreUnavailable: no answer; with ``unknown`` it may have been written all the same.
        """
        return run_sync(self._core.put(value, if_version, fence))

    def update(self, change: Update[T], timeout: Seconds | None = None) -> Versioned[T]:
        """Read, call ``change(value)``, and write what it returns; retry from the start if another client wrote.

        Args:
            change: gets the value (None if there is none) and returns the new one. It may be called several times, so
                it should have no other effect.
            timeout: seconds after which no further attempt is made; None means no limit.

        Returns:
            The new value and its version.

        Raises:
            Conflict: another client wrote first at each attempt until the timeout.
            StoreUnavailable: no answer; with ``unknown`` it may have been written all the same.
            TypeError: the function returned None, or what JSON cannot express and is not bytes.
            ValueError: the new value is too large.
        """
        refuse_coroutines(change)
        return run_sync(self._core.update(change, timeout))


def _check_count(value: object, what: str, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{what} must be {least} or more, it is {value}")

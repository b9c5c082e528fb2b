"""Fetch it once for all: `AsyncCachedValue` and its sync facade `CachedValue`.

Theory of operation
-------------------
Two cells: the *value*, which expires after its time to live, and the *freshness* (stored as ``bloom``), which expires
``early`` seconds before that.

- While both exist, all callers use the value.
- When only the value exists, the one caller that gets the lock at once fetches a new value; all others use the old.
- When there is no value, all callers wait for the lock. The first fetches; the others find what it fetched.

The store's clock decides all times, counted from before the fetch began. Where a failover may begin them again, the
wall clocks do, too (`Register`). The value is fenced: one that an earlier holder fetched never replaces one of a later
holder.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._model import NotAcquired
from leasehold._runtimes.base import call_user_code, resolved, run_sync
from leasehold._runtimes.log import log
from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, LeaseLost
from leasehold.primitives.bases import AsyncPrimitive, Facade, refuse_coroutines
from leasehold.primitives.locks.guard import guard
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.values.register import Body, Record, Register
from leasehold.primitives.values.versioned import LONGEST_TTL

T = TypeVar("T")

Fetch = Callable[[], T]
"""Returns a new value."""

AsyncFetch = Callable[[], Coroutine[Any, Any, T]]
"""As `Fetch`, awaited. A plain function works, too; only a type checker cannot tell the two apart."""

TimeToLive = Seconds | Callable[[T], Seconds]
"""Seconds, or a function that reads them from the fetched value, as from ``expires_in`` of a token."""

EARLY = 0.1
"""The part of the time to live in which it is renewed early, by default."""

RETRY_PAUSE = 1.0
"""Seconds without another early fetch after one failed, while there is an old value."""


class Missing(enum.Enum):
    """Stands for an argument that is not given, since None is a value."""

    MISSING = "missing"


class AsyncCachedValue(AsyncPrimitive, Generic[T]):
    """A value that one instance fetches and all use: an access token, an exchange rate, a costly result.

    Example:
        ```python
        async def fetch():
            return {"token": "abc", "expires_in": 7200}

        token = client.cached("partner-token", lambda answer: answer["expires_in"], fetch)
        value = await token.get()
        ```
    """

    def __init__(
        self,
        engine: Engine,
        key: str,
        ttl: TimeToLive[T],
        fetch: Callable[[], Any],
        *,
        early: Seconds | None,
        lease: Seconds,
        timeout: Seconds | None,
    ) -> None:
        self._engine = engine
        self._ttl = ttl if callable(ttl) else _validate.above_zero(ttl, "ttl", LONGEST_TTL)
        self._early = None if early is None else _validate.at_least_zero(early, "early")
        if self._early is not None and isinstance(self._ttl, float) and self._early >= self._ttl:
            raise ValueError(f"early must be less than the ttl of {self._ttl} s, it is {self._early}")
        self._fetch = fetch
        self._timeout = _validate.timeout(timeout)
        self._lock = guard(engine, "shared", key, lease=lease)
        self._value = Register(engine, "shared", key, ends=True)
        self._bloom = Register(engine, "bloom", key, ends=True)
        self._name = key

    @property
    def key(self) -> str:
        """The value's name."""
        return self._name

    async def get(self, *, refused: object = Missing.MISSING) -> T:
        """Return the value, fetched here or by another instance.

        Args:
            refused: a value that turned out to be invalid, as a revoked token. If it is still the cached one, one
                caller fetches another, and the rest wait for that.

        Raises:
            AcquireTimeout: another caller was still fetching at the ``timeout``.
            StoreUnavailable: the store does not answer.
            LeaseLost: the fetch took longer than its lease, three times; or ``fetch`` lost a lock of its own.
            Exception: what ``fetch`` raised; the next waiter then tries. While there is an old value, the failure is
                logged, the old value is returned, and no caller retries for a second.
            TypeError: JSON cannot express the fetched value, and it is not bytes; or its ttl is no number of seconds.
            ValueError: the fetched value is larger than 64 KiB, or its ttl is not above 0, or above ten years.
        """
        self._engine.ready()
        seen = await self._value.read()
        value: T
        if not _good(seen, refused):
            value = await self._wait(refused)
        elif (await self._bloom.read()).version:
            value = seen.value
        else:
            value = await self._get_early(seen)
        return value

    async def _get_early(self, seen: Record) -> Any:
        try:
            hold = await self._lock._acquire(False, None)
            if isinstance(hold, NotAcquired):
                return seen.value  # one caller is enough to fetch
            async with hold:
                if (await self._bloom.read()).version:  # another caller did, between the two reads
                    now = await self._value.read()
                    if now.version:  # else so long ago that the new value has expired, too
                        return now.value
                try:
                    return await self._fetch_and_keep(hold)
                except Exception:
                    if self._engine.closed:
                        raise
                    await self._bloom.write(Body.of("rest"), ttl=RETRY_PAUSE, fence=hold.token, only=True)
                    raise
        except Exception as error:
            if self._engine.closed:
                raise
            now = await self._value.read()
            if not now.version:
                raise
            log.warning("could not fetch %r early, the old value is still used: %s", self.key, repr(error))
            return now.value

    async def _wait(self, refused: object) -> Any:
        runtime, tries = self._engine.runtime, 3
        start = runtime.now()
        until = None if self._timeout is None else start + self._timeout
        while True:
            tries, hold = tries - 1, None
            try:
                hold = await self._lock._acquire(True, -1 if until is None else max(0.0, until - runtime.now()))
                if isinstance(hold, NotAcquired):
                    break
                async with hold:
                    seen = await self._value.read()
                    return seen.value if _good(seen, refused) else await self._fetch_and_keep(hold)
            except LeaseLost as error:  # another may have fetched it meanwhile: read again
                # Not if it is about a lock that `fetch` uses.
                ours = not isinstance(hold, AsyncHold) or hold.lost or error.token == hold.token
                if not (ours and tries) or self._engine.closed:
                    raise
        seen = await self._value.read()  # many callers wait, and the time was too short for the turn of this one
        if _good(seen, refused):
            return seen.value
        raise self._error(AcquireTimeout, f"another was still fetching {self.key!r}", waited=runtime.now() - start)

    async def _fetch_and_keep(self, hold: AsyncHold) -> Any:
        runtime, token = self._engine.runtime, hold.token
        start = runtime.now()
        fetched = await resolved(call_user_code(self._fetch))
        if self._engine.closed:  # it cannot be kept
            hold.raise_if_lost()
        body = Body.of(fetched)
        ttl = call_user_code(self._ttl, fetched) if callable(self._ttl) else self._ttl
        ttl = _validate.above_zero(ttl, "ttl", LONGEST_TTL)
        early = ttl * EARLY if self._early is None else min(self._early, ttl)
        left = ttl - (runtime.now() - start)
        if left > 0:
            await self._value.write(body, ttl=left, fence=token, only=True)
            bloom = left - early if left > early else left / 2  # a slow fetch must not cause the next one at once
            await self._bloom.write(Body.of(token), ttl=bloom, fence=token, only=True)
        return body.value()


class CachedValue(Facade[AsyncCachedValue[T]], Generic[T]):
    """A value that one instance fetches and all use: an access token, an exchange rate, a costly result.

    Example:
        ```python
        def fetch():
            return {"token": "abc", "expires_in": 7200}

        token = client.cached("partner-token", lambda answer: answer["expires_in"], fetch)
        value = token.get()
        ```
    """

    def __init__(self, core: AsyncCachedValue[T]) -> None:
        refuse_coroutines(core._fetch)
        super().__init__(core)

    @property
    def key(self) -> str:
        """The value's name."""
        return self._core.key

    def get(self, *, refused: object = Missing.MISSING) -> T:
        """Return the value, fetched here or by another instance.

        Args:
            refused: a value that turned out to be invalid, as a revoked token. If it is still the cached one, one
                caller fetches another, and the rest wait for that.

        Raises:
            AcquireTimeout: another caller was still fetching at the ``timeout``.
            StoreUnavailable: the store does not answer.
            Exception: what ``fetch`` raised, unless there is an old value; the next waiter then tries.
            TypeError: JSON cannot express the fetched value, and it is not bytes; or its ttl is no number of seconds.
            ValueError: the fetched value is larger than 64 KiB, or its ttl is not above 0, or above ten years.
        """
        return run_sync(self._core.get(refused=refused))


def _good(seen: Record, refused: object) -> bool:
    return seen.version > 0 and (refused is Missing.MISSING or seen.value != refused)

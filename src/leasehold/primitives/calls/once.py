"""Do work once and keep its result: `AsyncOnce` and its sync facade `Once`.

Theory of operation
-------------------
A caller that finds no result acquires the lock, reads again, does the work, and writes the result before it releases.
The write is fenced, and made only if there is no result yet. So all callers get one result, even if a lease was lost
meanwhile and two did the work: the first recorded result counts.

It is *at least once*. After a crash between the work and the record, another caller does the work again. No order of
the two steps avoids that. Only work that is itself identified by its key is safe (an idempotency key of a payment
service, a unique index).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._model import NotAcquired
from leasehold._runtimes.base import call_user_code, resolved, run_sync
from leasehold._validate import Seconds
from leasehold.primitives.bases import (
    AsyncPrimitive,
    Facade,
    refuse_coroutines,
    refuse_generators,
    refuse_returned_generator,
)
from leasehold.primitives.locks.guard import guard
from leasehold.primitives.values.register import Body, Form, Record, Register
from leasehold.primitives.values.versioned import LONGEST_TTL

P = ParamSpec("P")
T = TypeVar("T")

Work = Callable[P, T]
"""The work: its arguments, and the result that is kept."""

AsyncWork = Callable[P, T | Coroutine[Any, Any, T]]
"""As `Work`, or a coroutine function."""


class AsyncOnce(AsyncPrimitive, Generic[T]):
    """Work that is done once for its key; later callers get its result. Generic in the result.

    Example:
        ```python
        async def charge(order):
            return {"order": order, "paid": True}

        receipt = await client.once("payment:7", ttl=86_400).run(charge, 7)
        ```
    """

    def __init__(self, engine: Engine, key: str, *, ttl: Seconds, lease: Seconds, timeout: Seconds | None) -> None:
        self._engine = engine
        self._register = Register(engine, "once", key)
        self._lock = guard(engine, "once", key, lease=lease, timeout=timeout)
        self._ttl = _validate.above_zero(ttl, "ttl", LONGEST_TTL)
        self._name = key

    @property
    def key(self) -> str:
        """The key that identifies the work."""
        return self._name

    async def run(self, work: AsyncWork[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the kept result, or do ``work(*args, **kwargs)`` and keep what it returns.

        Every caller gets the result as JSON decodes it, the first caller too; bytes are kept as they are. If the work
        raises, nothing is kept, the caller gets the error, and the next caller does the work.

        Raises:
            AcquireTimeout: another caller was still doing the work at the ``timeout``.
            LeaseLost: the lease ended meanwhile, so another caller may have done the work, too; call again.
            StoreUnavailable: no answer. If the work was done, its result may be lost, and the work be done again.
            TypeError: the result cannot be kept. The store records that the work was done; later callers get a
                `ValueError`, and the work is not done again. Or the work is a generator, or returned one: it was not
                done, and nothing is recorded.
        """
        refuse_generators(work)
        self._engine.ready()
        seen = await self._register.read()
        if not seen.version:
            seen = await self._in_turn(partial(work, *args, **kwargs))
        if seen.unstorable:
            raise ValueError(f"{self.key!r} was done, but its result could not be kept: {seen.unstorable}")
        value: T = seen.value
        return value

    async def done(self) -> bool:
        """Return whether the work was done and its result is still kept.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        return (await self._register.read()).version > 0

    async def _in_turn(self, work: Callable[[], Any]) -> Record:
        hold = await self._lock._acquire(True, None)  # it belongs to this call: see `HoldList.owned`
        if isinstance(hold, NotAcquired):  # perhaps only for want of a turn: many callers wait
            seen = await self._register.read()
            if seen.version:
                return seen
            raise self._lock._timed_out(hold)
        async with hold:
            seen = await self._register.read()
            if seen.version:
                return seen
            result = refuse_returned_generator(await resolved(call_user_code(work)), work)
            if self._engine.closed:  # it cannot be recorded
                hold.raise_if_lost()
            return await self._engine.runtime.shield(self._record(result, hold.token))

    async def _record(self, result: Any, token: int) -> Record:
        try:
            body, problem = Body.of(result), None
        except (TypeError, ValueError) as error:
            body, problem = Body(Form.UNSTORABLE, str(error).encode()), error
        record = await self._register.write(body, ttl=self._ttl, if_version=0, fence=token)
        if problem is not None:
            raise TypeError(f"the result of {self.key!r} cannot be kept: {problem}") from None
        return record


class Once(Facade[AsyncOnce[T]], Generic[T]):
    """Work that is done once for its key; later callers get its result. Generic in the result.

    Example:
        ```python
        def charge(order):
            return {"order": order, "paid": True}

        receipt = client.once("payment:7", ttl=86_400).run(charge, 7)
        ```
    """

    @property
    def key(self) -> str:
        """The key that identifies the work."""
        return self._core.key

    def run(self, work: Work[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the kept result, or do ``work(*args, **kwargs)`` and keep what it returns.

        Every caller gets the result as JSON decodes it, the first caller too; bytes are kept as they are. If the work
        raises, nothing is kept, the caller gets the error, and the next caller does the work.

        Raises:
            AcquireTimeout: another caller was still doing the work at the ``timeout``.
            LeaseLost: the lease ended meanwhile, so another caller may have done the work, too; call again.
            StoreUnavailable: no answer. If the work was done, its result may be lost, and the work be done again.
            TypeError: the result cannot be kept. The work is not done again; later callers get a `ValueError`.
        """
        refuse_coroutines(work)
        return run_sync(self._core.run(work, *args, **kwargs))

    def done(self) -> bool:
        """Return whether the work was done and its result is still kept. As `AsyncOnce.done`."""
        return run_sync(self._core.done())

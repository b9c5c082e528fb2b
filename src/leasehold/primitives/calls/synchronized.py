"""A function under a lock that its arguments name: `AsyncSynchronized` and its sync facade `Synchronized`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from leasehold._engine.engine import Engine
from leasehold.primitives.calls.call_names import CallName
from leasehold.primitives.calls.callables import is_coroutine, named, refuse_others
from leasehold.primitives.calls.decorating import finished
from leasehold.primitives.locks.options import Options
from leasehold.primitives.locks.rlock import AsyncRLock, Reentries, RLock

P = ParamSpec("P")
T = TypeVar("T")

Naming = str | Callable[..., str]
"""A format string over the arguments, or a function that is called with them."""


class AsyncSynchronized:
    """A decorator for coroutine functions: each call runs under a re-entrant lock, named by its arguments.

    Example:
        ```python
        @client.synchronized("order:{order_id}", timeout=5)
        async def ship(order_id):
            return f"shipped {order_id}"

        await ship(7)
        ```

    """

    def __init__(self, engine: Engine, name: Naming, hold: str | None, options: Options, reentries: Reentries) -> None:
        self._engine = engine
        self._name = name
        self._hold = hold
        self._options = options
        self._reentries = reentries

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the function under its lock.

        Raises:
            TypeError: it is no coroutine function, or has no parameter for the hold.
            ValueError: the name's template does not fit the function's arguments.

        """
        refuse_others(function)
        if not is_coroutine(function):
            raise TypeError(f"{named(function)} is a plain function; this client awaits, use Client for it")
        naming = CallName(self._name, function, self._hold)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            naming.refuse_hold(kwargs)
            async with self._lock(naming.of(args, kwargs)) as hold:
                naming.put_hold(kwargs, hold)
                return await function(*args, **kwargs)

        return locked

    def _lock(self, name: str) -> AsyncRLock:
        return AsyncRLock(self._engine, name, self._options, self._reentries)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class Synchronized:
    """A decorator for functions: each call runs under a re-entrant lock, named by its arguments.

    Example:
        ```python
        @client.synchronized("order:{order_id}", timeout=5)
        def ship(order_id):
            return f"shipped {order_id}"

        ship(7)
        ```

    """

    def __init__(self, core: AsyncSynchronized) -> None:
        self._core = core

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function under its lock.

        Raises:
            TypeError: it is a coroutine function, or has no parameter for the hold.
            ValueError: the name's template does not fit the function's arguments.

        """
        refuse_others(function)
        if is_coroutine(function):
            raise TypeError(f"{named(function)} is a coroutine function; this client blocks, use AsyncClient for it")
        naming = CallName(self._core._name, function, self._core._hold)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            naming.refuse_hold(kwargs)
            with RLock(self._core._lock(naming.of(args, kwargs))) as hold:
                naming.put_hold(kwargs, hold)
                return finished(function(*args, **kwargs), function)

        return locked

    def __repr__(self) -> str:
        return repr(self._core).replace("<AsyncSynchronized", "<Synchronized", 1)

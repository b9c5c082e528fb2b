"""A lock as a decorator: each call of the function runs under it. `AsyncDecorating` and its sync facade `Decorating`.

As `contextlib.ContextDecorator`, for locks of a fixed name. Where the call's arguments decide the name, or the function
needs the hold, use `synchronized`.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from leasehold.primitives.calls.callables import is_coroutine, named, refuse_coroutines, refuse_others

P = ParamSpec("P")
T = TypeVar("T")


class AsyncDecorating(ABC):
    """What an ``async with`` block may be around: also a decorator of coroutine functions."""

    __slots__ = ()

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the function, each call of which runs under this lock.

        Raises:
            TypeError: it is no coroutine function.

        """
        refuse_others(function)
        if not is_coroutine(function):
            raise TypeError(f"{named(function)} is a plain function; this client awaits, use Client for it")

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await function(*args, **kwargs)

        return locked

    @abstractmethod
    def __aenter__(self) -> Coroutine[Any, Any, Any]: ...

    @abstractmethod
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Coroutine[Any, Any, None]: ...


class Decorating(ABC):
    """What a ``with`` block may be around: also a decorator of functions."""

    __slots__ = ()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, each call of which runs under this lock.

        Raises:
            TypeError: it is a coroutine function, or a generator.

        """
        refuse_others(function)
        refuse_coroutines(function)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return finished(function(*args, **kwargs), function)

        return locked

    @abstractmethod
    def __enter__(self) -> Any: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def finished(result: T, function: Callable[..., Any]) -> T:
    """Raise TypeError for a returned coroutine: it would run after the release of the lock."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{named(function)} returned a coroutine, which would run without the lock; use AsyncClient")
    return result

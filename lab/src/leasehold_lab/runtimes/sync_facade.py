"""Wraps a blocking object in the interface of its asyncio counterpart, so that one test body serves both flavors."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from leasehold._runtimes.base import call_user_code, finish

T = TypeVar("T")


class AwaitableFacade:
    """A blocking object whose methods are awaited as those of its asyncio counterpart; ``with`` is ``async with``.

    A result that has an asyncio counterpart is wrapped, too. Coroutine functions that are passed to a method or a
    decorator run to their end when they are called.
    """

    def __init__(self, thing: Any) -> None:
        self.blocking = thing
        self._counterpart = _counterpart(thing)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.blocking, name)
        if not callable(value):
            return _wrapped(value)
        if not iscoroutinefunction(getattr(self._counterpart, name)):

            def plain(*args: Any, **options: Any) -> Any:
                return _wrapped(value(*map(_run_when_called, args), **options))

            return plain

        async def call(*args: Any, **options: Any) -> Any:
            return _wrapped(value(*map(_run_when_called, args), **options))

        return call

    def __call__(self, work: Any) -> Any:
        """Decorate a coroutine function."""
        decorated = self.blocking(_run_when_called(work))

        @wraps(decorated)
        async def call(*args: Any, **options: Any) -> Any:
            return decorated(*args, **options)

        return call

    async def __aenter__(self) -> Any:
        entered = self.blocking.__enter__()
        return self if entered is self.blocking else _wrapped(entered)

    async def __aexit__(self, *error: Any) -> Any:
        return self.blocking.__exit__(*error)

    def __repr__(self) -> str:
        return f"face({self.blocking!r})"


def sync_facade(thing: Any) -> Any:
    """Wrap a blocking client, lock or hold in the interface of its asyncio counterpart."""
    return AwaitableFacade(thing)


async def as_program(work: Coroutine[Any, Any, T]) -> T:
    """Do work of the blocking flavor, in a job of its runtime, as a thread of the program does: its calls are its own.

    Else they would count as calls of a finalizer that interrupts the job.
    """
    return call_user_code(finish, work)


def _wrapped(value: Any) -> Any:
    return AwaitableFacade(value) if _counterpart(value) is not None else value


def _run_when_called(value: Any) -> Any:
    if isinstance(value, AwaitableFacade):
        return value.blocking
    if isinstance(value, list | tuple):
        return [_run_when_called(item) for item in cast(list[Any], value)]
    if not iscoroutinefunction(value):
        return value

    @wraps(value)
    def call(*args: Any, **options: Any) -> Any:
        return finish(value(*args, **options))

    return call


def _counterpart(thing: object) -> type | None:
    """Return the asyncio counterpart of a blocking class: ``AsyncLock`` in the module of ``Lock``."""
    kind = type(thing)
    if not kind.__module__.startswith("leasehold."):
        return None
    twin: type | None = getattr(sys.modules[kind.__module__], f"Async{kind.__name__}", None)
    return twin

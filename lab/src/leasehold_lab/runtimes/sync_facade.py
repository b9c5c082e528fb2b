"""A blocking object with the look of its asyncio twin, so that one test body serves both."""

from __future__ import annotations

import sys
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, cast

from leasehold._runtimes.base import finish


class Face:
    """A blocking object whose methods are awaited as those of its asyncio twin; ``with`` is ``async with``.

    What comes back from a method, if it has a twin itself, comes with a face. Coroutine functions that a method or a
    decorator is given are driven to their end when they are called.
    """

    def __init__(self, thing: Any) -> None:
        self.blocking = thing
        self._twin = _twin(thing)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.blocking, name)
        if not callable(value):
            return _faced(value)
        if not iscoroutinefunction(getattr(self._twin, name)):

            def plain(*args: Any, **options: Any) -> Any:
                return _faced(value(*map(_driven, args), **options))

            return plain

        async def call(*args: Any, **options: Any) -> Any:
            return _faced(value(*map(_driven, args), **options))

        return call

    def __call__(self, work: Any) -> Any:
        """Decorate a coroutine function."""
        decorated = self.blocking(_driven(work))

        @wraps(decorated)
        async def call(*args: Any, **options: Any) -> Any:
            return decorated(*args, **options)

        return call

    async def __aenter__(self) -> Any:
        entered = self.blocking.__enter__()
        return self if entered is self.blocking else _faced(entered)

    async def __aexit__(self, *error: Any) -> Any:
        return self.blocking.__exit__(*error)

    def __repr__(self) -> str:
        return f"face({self.blocking!r})"


def sync_facade(thing: Any) -> Any:
    """Give a blocking client, lock or hold the look of its asyncio twin."""
    return Face(thing)


def _faced(value: Any) -> Any:
    return Face(value) if _twin(value) is not None else value


def _driven(value: Any) -> Any:
    if isinstance(value, Face):
        return value.blocking
    if isinstance(value, list | tuple):
        return [_driven(item) for item in cast(list[Any], value)]
    if not iscoroutinefunction(value):
        return value

    @wraps(value)
    def call(*args: Any, **options: Any) -> Any:
        return finish(value(*args, **options))

    return call


def _twin(thing: object) -> type | None:
    """Return the asyncio class beside a blocking one: ``AsyncLock`` in the module of ``Lock``."""
    kind = type(thing)
    if not kind.__module__.startswith("leasehold."):
        return None
    twin: type | None = getattr(sys.modules[kind.__module__], f"Async{kind.__name__}", None)
    return twin

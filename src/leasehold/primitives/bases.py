"""What the primitives have in common: a name, the ``with`` block, the decorator, and the sync facade.

Each primitive is an `AsyncX`, the algorithm, and an `X`, its sync facade: it has methods with signatures and docstrings
of its own, and runs each of its core's coroutines with `run_sync`. Neither inherits from the other. What both share is
here, once for each flavor. No base has an ``__init__`` that an `AsyncX` has to call.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from leasehold._engine.engine import Engine
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocks import Block, ends_block
from leasehold.errors import LeaseholdError

P = ParamSpec("P")
T = TypeVar("T")


E = TypeVar("E", bound=LeaseholdError)


class AsyncPrimitive:
    """A primitive of one client, or the part of a primitive that sends requests to the store."""

    __slots__ = ("__weakref__", "_engine", "_name")

    _engine: Engine
    _name: str

    def _error(
        self,
        kind: type[E],
        message: str,
        *,
        token: int | None = None,
        waited: float | None = None,
        held_by: str | None = None,
    ) -> E:
        """Make an error that names this primitive and its client."""
        owner = str(self._engine.owner)
        return kind(message, name=self._name, owner=owner, token=token, waited=waited, held_by=held_by)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def __reduce__(self) -> str:
        what = type(self).__name__.removeprefix("Async")
        raise TypeError(
            f"{what} {self._name!r} cannot be copied or sent to another process; make it there, by a client"
        )


class AsyncNamed(AsyncPrimitive):
    """A primitive that shows its name."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name


class AsyncContext(ABC):
    """Base of the objects that can be used with ``async with``."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def __aenter__(self) -> Coroutine[Any, Any, Any]: ...

    @ends_block
    def __aexit__(
        self,
        block: Block,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Coroutine[Any, Any, None]:
        return self._exit(block, error)

    @abstractmethod
    def _exit(self, block: Block, error: BaseException | None) -> Coroutine[Any, Any, None]:
        """End a block; ``block`` keeps the lease alive until the release."""


class AsyncDecorating(AsyncContext):
    """Base of the objects that can be used with ``async with``, or as a decorator of coroutine functions.

    As `contextlib.AsyncContextDecorator`, for locks of a fixed name. Where the arguments of the call decide the name,
    or the function needs the hold, use `synchronized`.
    """

    __slots__ = ()

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the function, each call of which runs under this lock.

        Raises:
            TypeError: it is no coroutine function.
        """
        require_coroutine_function(function)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await function(*args, **kwargs)

        return locked


Core = TypeVar("Core")


class Facade(Generic[Core]):
    """The sync facade of a primitive."""

    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def __reduce__(self) -> Any:
        return self._core.__reduce__()  # it refuses, for a shallow copy too


class HasName(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str: ...


NamedCore = TypeVar("NamedCore", bound=HasName)


class NamedFacade(Facade[NamedCore]):
    """The sync facade of a primitive that shows its name."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._core.name


ContextCore = TypeVar("ContextCore", bound=AsyncContext)


class ContextFacade(NamedFacade[ContextCore], ABC):
    """Base of the objects that can be used with ``with``."""

    __slots__ = ()

    @abstractmethod
    def __enter__(self) -> Any: ...

    @ends_block
    def __exit__(
        self,
        block: Block,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        run_sync(self._core._exit(block, error))


class DecoratingFacade(ContextFacade[ContextCore]):
    """Base of the objects that can be used with ``with``, or as a decorator of functions; as `AsyncDecorating`."""

    __slots__ = ()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, each call of which runs under this lock.

        Raises:
            TypeError: it is a coroutine function, or a generator.
        """
        require_function(function)
        refuse_coroutines(function)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return refuse_returned_coroutine(function(*args, **kwargs), function)

        return locked


# --- functions that users pass in: which flavor they are, and which cannot be wrapped ---------------------------------


def refuse_coroutines(work: Callable[..., Any]) -> None:
    """Raise TypeError for a coroutine function, which a blocking client cannot run."""
    if _is_coroutine(work):
        raise TypeError(f"{function_name(work)} is a coroutine function; this client blocks, use AsyncClient for it")


def require_coroutine_function(work: Callable[..., Any]) -> None:
    """Raise TypeError unless ``work`` is a coroutine function."""
    require_function(work)
    if not _is_coroutine(work):
        raise TypeError(f"{function_name(work)} is a plain function; this client awaits, use Client for it")


def refuse_callback(callback: Callable[..., Any]) -> None:
    """Raise TypeError unless ``callback`` is a plain function: a coroutine that it returns would never be awaited."""
    if not callable(callback) or _is_coroutine(callback):
        raise TypeError(
            f"a plain function is expected, not {function_name(callback)}; to await something, let it start a task"
        )


def require_function(work: Callable[..., Any]) -> None:
    """Raise TypeError unless ``work`` is a function. A generator is refused: its body runs after the call returned."""
    if isinstance(work, staticmethod | classmethod):
        kind = "staticmethod" if isinstance(work, staticmethod) else "classmethod"
        raise TypeError(f"put @{kind} above this decorator, not below it")
    if isinstance(work, type) or not callable(work):
        raise TypeError(f"a function is expected, not {work!r}")
    refuse_generators(work)


def refuse_generators(work: Callable[..., Any]) -> None:
    """Raise TypeError for a generator function, synchronous or not."""
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError(
            f"{function_name(work)} is a generator: its body runs after the call, without the lock; "
            "take the lock inside it"
        )


def refuse_returned_generator(result: T, function: Callable[..., Any]) -> T:
    """Raise TypeError for a returned generator: its body would run after the release of the lock."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"{function_name(function)} returned a generator, whose body would run without the lock")
    return result


def refuse_returned_coroutine(result: T, function: Callable[..., Any]) -> T:
    """Raise TypeError for a returned coroutine: it would run after the release of the lock."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{function_name(function)} returned a coroutine, which would run without the lock; use AsyncClient"
        )
    return result


def function_name(work: Callable[..., Any]) -> str:
    """Return the name of a function for a message."""
    while isinstance(work, functools.partial):  # its text has the arguments
        work = work.func
    return str(getattr(work, "__qualname__", work))


def _is_coroutine(work: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(getattr(work, "__call__", None))  # noqa: B004

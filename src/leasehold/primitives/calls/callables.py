"""Functions that users pass in: which flavor they are, and which cannot be wrapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def refuse_coroutines(work: Callable[..., Any]) -> None:
    """Raise TypeError for a coroutine function, which a blocking client cannot run."""
    if is_coroutine(work):
        raise TypeError(f"{named(work)} is a coroutine function; this client blocks, use AsyncClient for it")


def refuse_others(work: Callable[..., Any]) -> None:
    """Raise TypeError for what is no function, and for generators: their bodies run after the call has returned."""
    if isinstance(work, staticmethod | classmethod):
        kind = "staticmethod" if isinstance(work, staticmethod) else "classmethod"
        raise TypeError(f"put @{kind} above this decorator, not below it")
    if isinstance(work, type) or not callable(work):
        raise TypeError(f"a function is expected, not {work!r}")
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError(
            f"{named(work)} is a generator: its body runs after the call, without the lock; take the lock inside it"
        )


def is_coroutine(work: Callable[..., Any]) -> bool:
    """Return whether calling it makes a coroutine, as far as can be told."""
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(getattr(work, "__call__", None))  # noqa: B004


def named(work: Callable[..., Any]) -> str:
    """Return what to call a function in a message."""
    return str(getattr(work, "__qualname__", work))

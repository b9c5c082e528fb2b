"""Has one thread at a time handle events, in their order, also where a signal handler interrupts that very work.

A signal handler may release a lock at any line, so also while its own thread is inside a sink. A mutex alone would let
it in (or block it for ever), in the middle of a change. So what arrives there is put aside, and the frame that was
interrupted handles it when it continues.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")


class _Mutex(Protocol):
    def _is_owned(self) -> bool: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *raised: object) -> None: ...


_all: weakref.WeakSet[OneAtATime[Any]] = weakref.WeakSet()


class OneAtATime(Generic[T]):
    """Calls ``handle`` with each value, one at a time; a forked child starts anew, and calls ``forked``."""

    __slots__ = ("__weakref__", "_aside", "_forked", "_handle", "mutex")

    def __init__(self, handle: Callable[[T], None], forked: Callable[[], None] | None = None) -> None:
        self._handle = handle
        self._forked = forked
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self.mutex = cast(_Mutex, RLock())
        self._aside: deque[T] = deque()

    def after_fork(self) -> None:
        """Forget the thread that is inside: it does not exist in a forked child."""
        self._begin()
        if self._forked is not None:
            self._forked()

    def __call__(self, value: T) -> None:
        """Handle a value now, or after what this thread is handling already."""
        if self.mutex._is_owned():
            self._aside.append(value)
            return
        with self.mutex:
            self._handle(value)
            while self._aside:
                self._handle(self._aside.popleft())


def _after_fork() -> None:
    for each in list(_all):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

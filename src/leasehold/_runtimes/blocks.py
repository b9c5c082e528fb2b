"""The block of a ``with`` statement, as an object that the statement itself owns.

Theory of operation
-------------------
A lock object may be global. Suppose it kept the hold of each ``with`` block. An exception that a signal handler raises
in ``__enter__`` after the grant, or in ``__exit__`` before the release, would leave the hold there, and the watchdog
would renew it for ever. So the frame of the block keeps the hold:

1. Python looks up ``__exit__`` *before* it calls ``__enter__``, and keeps the result on the stack of the frame until
   the block ends (PEP 343). Here that look-up makes a new `Block`.
2. ``__enter__`` finds the `Block` of its own statement (`opened`), and puts the acquired hold into it.
3. However the frame is unwound, the `Block` and the lease handle in it are dropped with the frame.

`contextlib.ExitStack` looks up both methods in the class, in the same order, and keeps the result: it owns a `Block`,
too. The look-up and the call are in one function. Its `push` only looks up ``__exit__``, for what was entered before. A
direct call of ``__enter__`` has no `Block`: the lock keeps that hold until ``__exit__`` is called.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, TypeVar, cast

MOST_OPENED = 8  # most blocks that a thread remembers between the look-up of ``__exit__`` and ``__enter__``

S = TypeVar("S")
R = TypeVar("R")

Exit = Callable[[S, type[BaseException] | None, BaseException | None, TracebackType | None], R]


class Block:
    """One block. Python calls it at the end of the block, as ``__exit__`` or ``__aexit__``."""

    __slots__ = ("__weakref__", "_exit", "handle", "hold", "manager", "user")

    user: CodeType  # the code that looked it up in the class

    def __init__(self, exit_: Callable[..., Any], manager: object) -> None:
        self._exit = exit_
        self.manager = manager  # the context manager, or its class if it was looked up there
        self.hold: Any = None  # None if the block was entered without it
        self.handle: object = None  # keeps the lease of that hold alive, for as long as the block lasts

    def __call__(self, *args: Any) -> Any:
        if isinstance(self.manager, type):
            return self._exit(args[0], self, *args[1:])
        return self._exit(self.manager, self, *args)


class _EndsBlock:
    """The descriptor behind `ends_block`."""

    def __init__(self, exit_: Callable[..., Any]) -> None:
        self._exit = exit_
        functools.update_wrapper(self, exit_)  # type: ignore[arg-type]

    def __get__(self, manager: object, owner: type | None = None) -> Block:
        block = Block(self._exit, owner if manager is None else manager)
        if manager is None:
            block.user = sys._getframe(1).f_code
        opened_here = _opened.blocks
        opened_here.append(weakref.ref(block))
        if len(opened_here) > MOST_OPENED:
            del opened_here[:-MOST_OPENED]
        return block


class _Opened(threading.local):
    """The last blocks whose ``__exit__`` was looked up in this thread. The references are weak."""

    def __init__(self) -> None:
        self.blocks: list[Callable[[], Block | None]] = []


_opened = _Opened()


def ends_block(
    exit_: Callable[[S, Block, type[BaseException] | None, BaseException | None, TracebackType | None], R],
) -> Exit[S, R]:
    """Make a method, which takes the block as its first argument, the ``__exit__`` or ``__aexit__`` of its class."""
    return cast("Exit[S, R]", _EndsBlock(exit_))


def opened(manager: object) -> Block | None:
    """Return the block that the calling ``with`` statement has just made; None if ``__enter__`` was called by hand.

    To be called by ``__enter__`` itself.
    """
    blocks = _opened.blocks
    while blocks:
        block = blocks.pop()()
        if block is not None and block.hold is None:
            if block.manager is manager:
                return block
            if block.manager is type(manager) and block.user is sys._getframe(2).f_code:
                return block
    return None

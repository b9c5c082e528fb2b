"""The Runtime port, and `run_sync`, which finishes a coroutine without a loop.

Every algorithm is written once, as ``async def`` over this port and the `Store` port. Under the blocking runtime
each awaited port blocks instead of suspending, so the whole coroutine ends in one ``send(None)``: no loop, no hop to
another thread, no generated copy. Under asyncio it suspends as usual; under the simulated runtime it runs in seeded
virtual time.
"""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

TIDIES_WITHIN = 1.0
"""Seconds that a task has to end after it was cancelled, for whoever waits: some first hear how a transaction ended."""


INTERRUPTS = (
    "leasehold was called by a signal handler (or a finalizer) that interrupted another leasehold call of the same "
    "thread, and would wait for it for ever; set a flag there, or raise an exception, and call leasehold afterwards. "
    "Only hold.release() and lock.release() are possible at any time"
)
"""What a call that cannot be made where it is made says."""


class Flavor(enum.Enum):
    """Which kind of program a runtime serves."""

    SYNC = "blocking"
    ASYNC = "asyncio"
    SIMULATED = "simulated"


class Signal(Protocol):
    """A flag to wait for. `set` may be called from any thread; a flag that was set before the wait ends it at once."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait until set, at most ``timeout`` seconds (None: for ever). Return whether it is set."""
        ...


class Caller(Protocol):
    """A thread or a task: whoever a re-entrant lock belongs to."""

    @property
    def key(self) -> int: ...

    def alive(self) -> bool: ...


class Scope(Protocol):
    """The ``async with`` block of a hold, which a lost lease cuts short."""

    def enter(self, owner: object) -> None:
        """Begin the block; with ``owner``, if it is not None, the block is gone, whether it has ended or not."""
        ...

    def is_over(self) -> bool:
        """Return whether the block has ended, or an exception has unwound its frame at an unlucky moment."""
        ...

    def interrupt(self) -> None:
        """Cancel the block, from any thread."""
        ...

    def is_mine(self) -> bool:
        """Return whether it is a block of the task that runs now."""
        ...

    def exit(self, error: BaseException | None) -> bool:
        """Leave the block, which ended with ``error``; return True if that was our own cancellation and no other."""
        ...


class RecursiveMutex(Protocol):
    """A `threading.RLock`."""

    def _is_owned(self) -> bool: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *raised: Any) -> None: ...


class Job(Protocol):
    """Something that runs beside: a daemon thread or a task."""

    def alive(self) -> bool: ...

    def cancel(self) -> None:
        """Ask a task to end soon; a thread cannot be asked."""
        ...

    async def join(self, timeout: float) -> bool:
        """Wait for the end, at most ``timeout`` seconds; return whether it ended by itself.

        A task that did not is cancelled, and its end is waited for, too: `TIDIES_WITHIN` at most.
        """
        ...


class Runtime(Protocol):
    """Time, waiting and company. The only door through which the engine and the stores see the world."""

    @property
    def flavor(self) -> Flavor: ...

    def now(self) -> float:
        """Return the boot-time clock in seconds: monotonic, and it goes on while the machine sleeps."""
        ...

    def wall_us(self) -> int:
        """Return the wall clock in microseconds. A floor for fencing tokens; never used for validity."""
        ...

    def random_bytes(self, n: int, /) -> bytes:
        """Return ``n`` unpredictable bytes, never the same in a forked child."""
        ...

    def jitter(self) -> float:
        """Return a random number from 0 to 1, to spread retries."""
        ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a lock for a few lines of memory work. Nothing is ever awaited while it is held."""
        ...

    def recursive_mutex(self) -> RecursiveMutex:
        """Make a mutex that says whether the calling thread has it: a signal handler must not wait for itself."""
        ...

    def signal(self) -> Signal: ...

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        """Run ``work()`` beside the caller. It does not keep the interpreter alive."""
        ...

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T | BaseException]:
        """Run all at once; return each result or the exception it ended with, in order."""
        ...

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish ``work`` even if the caller is cancelled meanwhile; the cancellation is raised afterwards."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a call that may block (a disk, a C library) where it holds up nobody else."""
        ...

    def me(self) -> Caller:
        """Return who runs now."""
        ...

    def scope(self) -> Scope | None:
        """Return what cuts a block short; None where nothing can: a thread is told by `check`, and at the end."""
        ...

    def before_blocking(self) -> None:
        """Check that this runtime may be used from here; called at the start of each public operation.

        Raises:
            RuntimeError: a signal handler calls, or a finalizer, that interrupted another call of its own thread.

        """
        ...

    def before_release(self) -> None:
        """Check as `before_blocking` does, at the start of a release, which a signal handler may always call."""
        ...

    def interrupts(self) -> bool:
        """Return whether a signal handler calls that interrupted another call of its own thread: it must not wait."""
        ...

    def close(self) -> None:
        """Give back threads that are kept for `offload`; what comes after makes new ones."""
        ...


class _Calls(threading.local):
    """How many public calls of this thread are under way, one inside the other."""

    depth = 0


calls = _Calls()


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Finish a public call: a coroutine whose ports block. See `finish`."""
    before = calls.depth
    try:
        calls.depth = before + 1
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        calls.depth = before
    _suspended(work)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine whose ports block, in one step, and return its result.

    Raises:
        RuntimeError: it suspended, so it awaited something that is not of the blocking runtime.

    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    _suspended(work)


def _suspended(work: Coroutine[Any, Any, Any]) -> NoReturn:
    work.close()
    raise RuntimeError("a coroutine suspended under the blocking runtime: it awaited something of another runtime")


def outside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what belongs to the user: it may use the client, though it is called from inside of it."""
    before = calls.depth
    try:
        calls.depth = 0
        return call(*args, **kwargs)
    finally:
        calls.depth = before


def interrupts() -> bool:
    """Return whether the public call that runs now interrupted another one of its own thread.

    So does one that a signal handler makes, or a finalizer. The frame below may hold a mutex, or a connection in the
    middle of a reply; it goes on only when we return. Whoever must wait for it would wait for ever.
    """
    if calls.depth < 2:
        return False
    # The count may be wrong where an exception struck as it was set; the stack is not.
    depth, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_code is not outside.__code__:
        depth += frame.f_code is run_sync.__code__
        frame = cast(Any, frame.f_back)
    calls.depth = depth
    return depth > 1


async def ready(value: Awaitable[T] | T) -> T:
    """Await ``value`` if it can be awaited, else return it: for callbacks that may be of either flavor."""
    if isinstance(value, Awaitable):
        return await cast("Awaitable[T]", value)
    return value

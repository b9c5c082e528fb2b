"""The protocol of a runtime, and `run_sync`, which runs a coroutine without an event loop.

Every algorithm is written once, as ``async def`` over two protocols: `Runtime` and `Store`. Under the blocking runtime
each awaited call blocks instead of suspending. So the whole coroutine ends in one ``send(None)``: no event loop, no hop
to another thread, no generated copy. Under asyncio it suspends as usual. Under the simulated runtime it runs in seeded
virtual time.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import threading
import warnings
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

P = ParamSpec("P")
T = TypeVar("T")

ENDINGS = (Exception, CancelledError, GeneratorExit)  # what ends a job for good; a signal handler raises anything else

CLEANUP_WITHIN = 1.0  # seconds that a cancelled task has to end: some must first receive the outcome of a transaction

INTERRUPTS_MESSAGE = (
    "leasehold was called by a signal handler (or a finalizer) that interrupted another leasehold call of the same "
    "thread, and would wait for it for ever; set a flag there, or raise an exception, and call leasehold afterwards. "
    "Possible at any time are release(), cancel() of a Cancellation, and what reads the local clock: held, lost, "
    "remaining, raise_if_lost(), owned()"
)
"""The message of the RuntimeError for a call that interrupted another call of its own thread."""


class Flavor(enum.Enum):
    """The kind of program that a runtime serves."""

    SYNC = "blocking"
    ASYNC = "asyncio"
    SIMULATED = "simulated"


class Signal(Protocol):
    """A flag to wait for. Any thread may call `set`; a wait for a flag that is set returns at once."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait until set, at most ``timeout`` seconds (None: for ever). Return whether it is set."""
        ...


@runtime_checkable
class Caller(Protocol):
    """A thread or a task: the one that acquired a lock."""

    @property
    def key(self) -> int: ...

    def alive(self) -> bool: ...


class Scope(Protocol):
    """The ``async with`` block of a hold, which the loss of the lease interrupts."""

    def enter(self, owner: object) -> None:
        """Begin the block. If ``owner`` is not None, the block is over at the latest when that object is deleted."""
        ...

    def is_over(self) -> bool:
        """Return whether the block has ended, or an exception has unwound its frame without ``__aexit__``."""
        ...

    def interrupt(self) -> None:
        """Cancel the block, from any thread."""
        ...

    def is_mine(self) -> bool:
        """Return whether it is a block of the current task."""
        ...

    def exit(self, error: BaseException | None) -> bool:
        """Leave the block, which ended with ``error``; return True if that is our own cancellation only."""
        ...


class RecursiveMutex(Protocol):
    """A `threading.RLock`."""

    def _is_owned(self) -> bool: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *raised: Any) -> None: ...


class ProcessMutex:
    """Has a mutex for what all clients of a process share; a forked child has its own, which nobody holds."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.mutex = threading.RLock()  # a signal handler may make a client, too


class Job(Protocol):
    """A background job: a daemon thread or a task."""

    def alive(self) -> bool: ...

    def cancel(self) -> None:
        """Cancel a task; a thread cannot be cancelled."""
        ...

    async def join(self, timeout: float) -> bool:
        """Wait for the end, at most ``timeout`` seconds; return whether it ended by itself.

        A task that did not is cancelled and awaited, for `CLEANUP_WITHIN` at most.
        """
        ...


class Runtime(Protocol):
    """Time, waiting and jobs: the only access of the engine and the stores to the outside."""

    @property
    def flavor(self) -> Flavor: ...

    def now(self) -> float:
        """Return the boot-time clock in seconds: monotonic, and it goes on while the machine sleeps."""
        ...

    def wall_us(self) -> int:
        """Return the wall clock in microseconds. A floor for fencing tokens; a validity it may only shorten."""
        ...

    def random_bytes(self, n: int, /) -> bytes:
        """Return ``n`` unpredictable bytes, which differ in a forked child."""
        ...

    def jitter(self) -> float:
        """Return a random number from 0 to 1, to spread retries."""
        ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a mutex for a few lines that only use memory. Nothing is awaited while it is held."""
        ...

    def recursive_mutex(self) -> RecursiveMutex:
        """Make a mutex that reports whether the calling thread holds it: a signal handler must not wait for itself."""
        ...

    def signal(self) -> Signal: ...

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        """Run ``work()`` in the background. It does not keep the interpreter alive."""
        ...

    def spawn_loop(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        """Like `spawn`, but cancelling all tasks does not cancel it. It must send requests through `attempt`.

        It refers to its job while it runs, so a weak reference to the job is enough to know whether it does.
        """
        ...

    def beside(self) -> Runtime:
        """Return the runtime of a job that goes on while the event loop is stuck, or after it was closed.

        The job may await signals of both.
        """
        ...

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T | BaseException]:
        """Run all at once; return each result or the exception it ended with, in order."""
        ...

    async def attempt(self, work: Coroutine[Any, Any, T], name: str, otherwise: T) -> T:
        """Run ``work`` for a job of `spawn_loop`; return ``otherwise`` if the program cancelled all its tasks."""
        ...

    async def shield(self, work: Coroutine[Any, Any, T], grace: float | None = None) -> T:
        """Finish ``work`` even if the caller is cancelled; raise the cancellation afterwards.

        With ``grace``, ``work`` gets that many seconds after the cancellation; then it is cancelled, too.
        """
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a call that may block (a disk, a C library) where it delays no other task."""
        ...

    def me(self) -> Caller:
        """Return the current thread or task."""
        ...

    def scope(self) -> Scope | None:
        """Return the scope of a block; None for threads, which learn of a loss by `raise_if_lost` or at the end."""
        ...

    def before_blocking(self) -> None:
        """Check that this runtime may be used from here; called at the start of each public operation.

        Raises:
            RuntimeError: the caller is a signal handler or finalizer that interrupted another call of its own thread.
        """
        ...

    def before_release(self) -> None:
        """Check as `before_blocking` does, at the start of a release. A signal handler may always release."""
        ...

    def interrupts(self) -> bool:
        """Return whether this is a signal handler that interrupted another call of its thread: it must not wait."""
        ...

    def wake(self) -> None:
        """Wake the event loop, if any: one that sleeps does not notice what a signal handler has set in its thread."""
        ...

    def close(self) -> None:
        """End the threads of `offload`; a later `offload` starts new ones."""
        ...


class _Calls(threading.local):
    """The number of nested public calls of this thread."""

    depth = 0


calls = _Calls()


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a public call, or all that a thread of the client does: as `finish`, and `interrupts` counts it."""
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
    """Run a coroutine that blocks and never suspends, in one step, and return its result.

    Raises:
        RuntimeError: it suspended, so it awaited something of another runtime.
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


def call_user_code(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of the user. A call of the client inside it does not count as an interrupting one."""
    before = calls.depth
    try:
        calls.depth = 0
        return call(*args, **kwargs)
    finally:
        calls.depth = before


def is_own_error(error: BaseException) -> bool:
    """Return whether a function of the user raised this itself, and not a signal handler that interrupted it.

    Signal handlers run in the main thread. Elsewhere SystemExit would end a thread of ours, and with it all renewals.
    """
    return isinstance(error, Exception | CancelledError) or threading.current_thread() is not threading.main_thread()


def call_each(some: Iterable[Callable[[], object]]) -> None:
    """Make all calls; raise what the first of them raised when all were made."""
    raised: BaseException | None = None
    try:
        for call in some:
            try:
                call()
            except BaseException as error:  # a signal handler has raised
                raised = error if raised is None else raised
        if raised is not None:
            raise raised
    finally:
        del raised  # an error that is kept keeps the frames of all callers alive


def interrupts() -> bool:
    """Return whether the current public call interrupted another one of its own thread.

    A call of a signal handler or of a finalizer does. The interrupted frame may hold a mutex, or a connection in the
    middle of a reply, and continues only when we return. A wait for it would never end.
    """
    if calls.depth < 2:
        return False
    # An exception at any bytecode may leave the count wrong; the stack is always right.
    depth, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_code is not call_user_code.__code__:
        depth += frame.f_code is run_sync.__code__
        frame = cast(Any, frame.f_back)
    calls.depth = depth
    return depth > 1


NOT_THE_CALLER = (f"{Path(__file__).parent.parent}{os.sep}", contextlib.__file__)
"""Files whose frames are between the user's code and a warning: of this package, and of `contextlib.ExitStack`."""


def warn(message: str) -> None:
    """Warn at the line of the user's code that called the library, however many of our frames are in between."""
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(NOT_THE_CALLER) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


async def resolved(value: Awaitable[T] | T) -> T:
    """Await ``value`` if it is awaitable, else return it: for callbacks of either flavor."""
    if isinstance(value, Awaitable):
        return await cast("Awaitable[T]", value)
    return value

"""The asyncio runtime: each call suspends the calling task.

Many programs cancel all tasks but their own to shut down, and go on under their locks for a while. So a job that others
depend on is no task (`LoopJob`). It sends requests in tasks, and repeats one that was cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold._runtimes import clock
from leasehold._runtimes.base import CLEANUP_WITHIN, Caller, Flavor, Job, RecursiveMutex, Runtime, Scope, Signal
from leasehold._runtimes.blocking import BlockingRuntime, ThreadSignal

if TYPE_CHECKING:
    from leasehold._runtimes.worker import Worker

T = TypeVar("T")

OUTSIDE = "an asyncio lock is used outside a task; await it inside one"
"""The message of the RuntimeError for a call by a callback of the event loop."""


class AsyncioRuntime:
    """Tasks of one event loop: the loop in which the runtime is first used."""

    flavor = Flavor.ASYNC

    now = staticmethod(clock.boottime)
    wall_us = staticmethod(clock.wall_us)
    random_bytes = staticmethod(os.urandom)
    jitter = staticmethod(random.random)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0  # of the process in which that loop runs
        self._worker: Worker | None = None
        self._running: set[asyncio.Task[None]] = set()  # a loop itself keeps tasks by weak references only
        self.leave_loop: Callable[[], None] = lambda: None  # called before it begins in a loop: the last was closed

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.Lock()  # a store may be shared with threads; uncontended it costs 50 ns

    def recursive_mutex(self) -> RecursiveMutex:
        return threading.RLock()  # type: ignore[return-value]

    def signal(self) -> Signal:
        return TaskSignal()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        # Not by the loop's task factory: an eager one would run the first step here, inside the caller's mutex.
        loop, context = asyncio.get_running_loop(), contextvars.Context()
        task = asyncio.Task(work(), loop=loop, name=name, context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return TaskJob(task)

    def spawn_loop(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        return LoopJob(asyncio.get_running_loop(), work)

    def beside(self) -> Runtime:
        return BlockingRuntime()

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T | BaseException]:
        return list(await asyncio.gather(*map(owned, work), return_exceptions=True))

    async def attempt(self, work: Coroutine[Any, Any, T], name: str, otherwise: T) -> T:
        task = asyncio.Task(work, loop=asyncio.get_running_loop(), name=name)
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError | KeyboardInterrupt | SystemExit):  # the last two left the loop
            return otherwise
        if isinstance(result, BaseException):
            raise result
        return result

    async def shield(self, work: Coroutine[Any, Any, T], grace: float | None = None) -> T:
        # Cancelled before its first step, a task does nothing at all: `asyncio.all_tasks` lists this one after it.
        task = owned(work)
        task.get_loop().call_soon(asyncio._register_task, task)
        cancelled: asyncio.CancelledError | None = None
        timer: asyncio.TimerHandle | None = None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                if timer is None and grace is not None:
                    timer = task.get_loop().call_later(grace, task.cancel)
                cancelled = error
        if timer is not None:
            timer.cancel()
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # counts as retrieved: the caller gets the cancellation instead
            raise cancelled
        return task.result()

    async def offload(self, call: Callable[[], T]) -> T:
        if self._worker is None or not self._worker.alive():
            from leasehold._runtimes.worker import Worker  # most clients need none

            self._worker = Worker()
        return await self._worker.run(call)

    def me(self) -> Caller:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(OUTSIDE)
        caller = TaskCaller(task)
        caller.key = id(task)
        return caller

    def scope(self) -> Scope:
        return TaskScope()

    def before_blocking(self) -> None:
        self.before_release()
        if asyncio.current_task(self._loop) is None:
            raise RuntimeError(OUTSIDE)

    def before_release(self) -> None:
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._belong_to(loop)

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed() and self._pid == os.getpid():
            raise RuntimeError("this AsyncClient belongs to another event loop; make one client for each loop")
        self.leave_loop()
        self._loop, self._pid = loop, os.getpid()

    def interrupts(self) -> bool:
        return False  # a signal handler cannot await

    def wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: None)

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class TaskSignal:
    """An `asyncio.Event` whose `set` may be called from any thread. A job `beside` the loop may wait for it, too."""

    __slots__ = ("_beside", "_flag", "_loop", "_waiter")

    def __init__(self) -> None:
        self._flag = False
        self._beside: ThreadSignal | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        self._flag = True
        if self._beside is not None:
            self._beside.set()
        loop = self._loop
        if loop is None or self._waiter is None:
            return
        if asyncio._get_running_loop() is loop:
            self._wake()
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._wake)

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    async def wait(self, timeout: float | None) -> bool:
        """Wait for the flag. A `set` wakes the last task that waits, also if an earlier one is dropped."""
        if asyncio._get_running_loop() is None:
            self._beside = ThreadSignal()
            return self._flag or await self._beside.wait(timeout)  # checked after it was set, as below
        self._loop = asyncio.get_running_loop()
        waiter = self._waiter = self._loop.create_future()
        timer = None if timeout is None else self._loop.call_later(max(0.0, timeout), _finish, waiter)
        try:
            if not self._flag:  # checked after the waiter was set, so that a set from a thread is not missed
                await waiter
        finally:
            if self._waiter is waiter:
                self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._flag

    def _wake(self) -> None:
        if self._waiter is not None:
            _finish(self._waiter)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class TaskJob:
    """A task, kept alive by this reference."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self._cancelled = False  # a second cancellation would disturb the cleanup of the task

    def alive(self) -> bool:
        return not self._task.done() and not self._task.get_loop().is_closed()

    def cancel(self) -> None:
        if not self._cancelled and self.alive():
            self._cancelled = True
            self._task.cancel()

    async def join(self, timeout: float) -> bool:
        if self._task is asyncio.current_task():
            return False
        if not self.alive():
            return True
        done, _ = await asyncio.wait((self._task,), timeout=timeout)
        if not done:
            self.cancel()
            await asyncio.wait((self._task,), timeout=CLEANUP_WITHIN)
        return bool(done)


class LoopJob:
    """A coroutine that callbacks of the event loop resume. If its loop is closed, it is dropped without a warning."""

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._work: Coroutine[Any, Any, None] | None = None  # made as it begins: Python warns of one that never does
        self._ended = TaskSignal()
        self._context = contextvars.Context()
        self._awaited: asyncio.Future[Any] | None = None
        self._cancelled = False  # a second cancellation would disturb the cleanup of what it awaits
        self._loop.call_soon(self._start, begin, context=self._context)

    def alive(self) -> bool:
        if self._loop.is_closed() and not self._ended.is_set():  # nothing resumes it: let it leave its blocks
            self._ended.set()
            if self._work is not None:
                self._work.close()
        return not self._ended.is_set()

    def cancel(self) -> None:
        if not self._cancelled and self.alive() and self._awaited is not None:
            self._cancelled = self._awaited.cancel()

    async def join(self, timeout: float) -> bool:
        if not self.alive() or await self._ended.wait(timeout):
            return True
        self.cancel()
        await self._ended.wait(CLEANUP_WITHIN)
        return False

    def _start(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = begin()
        self._resume()

    def _resume(self, _: object = None) -> None:
        if self._work is None or self._ended.is_set():
            return
        try:
            self._awaited = self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._ended.set()
        except BaseException:
            self._ended.set()
            raise  # the event loop reports it
        else:
            if self._awaited is None:  # it only lets others run
                self._loop.call_soon(self._resume, context=self._context)
            else:
                self._awaited.add_done_callback(self._resume, context=self._context)


def owned(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that `asyncio.all_tasks` does not list: a program that cancels all tasks cancels its caller."""
    task = asyncio.ensure_future(work)
    asyncio._unregister_task(task)
    return task


class TaskCaller(weakref.ref[asyncio.Task[Any]]):
    """A task. It is a weak reference itself, since each hold has one."""

    __slots__ = ("key",)

    key: int

    def alive(self) -> bool:
        task = self()
        return task is not None and not task.done()


class TaskScope:
    """Cancels the task inside its block and takes that one cancellation back at the end, as `asyncio.timeout` does."""

    __slots__ = ("_cancelling", "_inside", "_interrupted", "_loop", "_owner", "_task")

    def __init__(self) -> None:
        self._inside = False
        self._interrupted = False

    def enter(self, owner: object) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("async with needs a task")
        self._task = task
        self._loop = task.get_loop()
        self._cancelling = task.cancelling()
        self._owner = None if owner is None else weakref.ref(owner)
        self._inside = True

    def is_over(self) -> bool:
        return not self._inside or (self._owner is not None and self._owner() is None)

    def interrupt(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._cancel()
        else:
            with suppress(RuntimeError):  # the loop is closed, and the block with it
                self._loop.call_soon_threadsafe(self._cancel)

    def is_mine(self) -> bool:
        return asyncio._get_running_loop() is self._loop and asyncio.current_task() is self._task

    def exit(self, error: BaseException | None) -> bool:
        self._inside = False
        if not self._interrupted:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)

    def _cancel(self) -> None:
        if not self.is_over() and not self._interrupted and asyncio.current_task() is not self._task:
            self._interrupted = True  # a task that discovers the loss itself gets the error
            self._task.cancel("the lease of the lock was lost")

"""The simulated runtime: calls suspend tasks in virtual time. No threads, no clock; only the seed is random."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from leasehold._runtimes.base import CLEANUP_WITHIN, Caller, Flavor, Job, RecursiveMutex, Runtime, Scope, Signal
from leasehold_lab.runtimes.virtual import Entry, Killed, Machine, Scheduler, Task, Wake, cancel

T = TypeVar("T")

EPOCH_US = 1_000_000_000_000_000
"""The wall clock in microseconds at virtual time zero."""


class SimulatedRuntime:
    """Tasks of one machine of a `Scheduler`."""

    flavor = Flavor.SIMULATED

    def __init__(self, scheduler: Scheduler, machine: Machine) -> None:
        self.scheduler = scheduler
        self.machine = machine

    def now(self) -> float:
        return self.machine.offset + self.machine.rate * self.scheduler.time

    def wall_us(self) -> int:
        machine = self.machine
        return EPOCH_US + int((machine.offset + machine.rate * self.scheduler.time + machine.wall) * 1e6)

    def random_bytes(self, n: int) -> bytes:
        return self.scheduler.random.randbytes(n)

    def jitter(self) -> float:
        return self.scheduler.random.random()

    def mutex(self) -> AbstractContextManager[Any]:
        return Mutex()

    def recursive_mutex(self) -> RecursiveMutex:
        return threading.RLock()  # type: ignore[return-value]

    def signal(self) -> Signal:
        return SimulatedSignal(self)

    async def sleep(self, seconds: float) -> None:
        wake = Wake()
        timer = self._after(seconds, wake)
        try:
            await self.pause(wake)
        finally:
            cancel(timer)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        return SimulatedJob(self, work, name)

    def spawn_loop(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        return self.spawn(work, name)

    async def attempt(self, work: Coroutine[Any, Any, T], name: str, otherwise: T) -> T:
        return await work

    def beside(self) -> Runtime:
        return self

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T | BaseException]:
        if self.scheduler.over:
            for one in work:
                one.close()
        self.before_blocking()
        tasks = [self.start(one, "gathered") for one in work]
        cancelled: asyncio.CancelledError | None = None
        for task in tasks:
            while not task.ended.fired:
                try:
                    await self._until(task)
                except asyncio.CancelledError as error:
                    cancelled = error
                    for other in tasks:
                        other.cancel()
        if cancelled is not None:
            raise cancelled
        return [task.error if task.error is not None else task.result() for task in tasks]

    async def shield(self, work: Coroutine[Any, Any, T], grace: float | None = None) -> T:
        task = self.start(work, "shielded")
        cancelled: asyncio.CancelledError | None = None

        async def end() -> None:
            await self.sleep(grace or 0.0)
            task.cancel()

        while not task.ended.fired:
            try:
                await self._until(task)
            except asyncio.CancelledError as error:
                if cancelled is None and grace is not None:
                    self.start(end(), "grace")
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return task.result()

    async def offload(self, call: Callable[[], T]) -> T:
        await self.sleep(0.0)
        return call()

    def me(self) -> Caller:
        return SimulatedCaller(self._current())

    def scope(self) -> Scope:
        return SimulatedScope(self)

    def before_blocking(self) -> None:
        if self.scheduler.over:
            raise Killed

    def before_release(self) -> None:
        self.before_blocking()

    def interrupts(self) -> bool:
        return False

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    # --- in addition to `Runtime` --------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, T], name: str) -> Task[T]:
        """Start a task of this machine."""
        return self.scheduler.spawn(self.machine, work, name)

    async def pause(self, wake: Wake) -> None:
        """Suspend until ``wake`` fires."""
        self.before_blocking()
        await wake

    def _after(self, seconds: float, wake: Wake) -> Entry:
        scheduler = self.scheduler
        if scheduler.current is None:
            raise RuntimeError("a simulated lock was used outside a task")
        machine = scheduler.current.machine  # the clock of the waiter counts, and its death ends the wait
        return scheduler.at(scheduler.time + seconds / machine.rate, machine, wake.fire)

    async def _until(self, task: Task[Any]) -> None:
        self.before_blocking()
        await task.wait()

    def _current(self) -> Task[Any]:
        if self.scheduler.current is None:
            raise RuntimeError("a simulated lock was used outside a task")
        return self.scheduler.current


class Mutex:
    """A mutex that is never contended: it checks that nothing is awaited while it is held."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        if self._held:
            raise RuntimeError("a mutex is taken twice: something was awaited, or called back, while it was held")
        self._held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False


class SimulatedSignal:
    """A flag in virtual time."""

    __slots__ = ("_flag", "_runtime", "_waiters")

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self._runtime = runtime
        self._flag = False
        self._waiters: list[Wake] = []

    def set(self) -> None:
        self._flag = True
        for wake in self._waiters:
            wake.fire()

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    async def wait(self, timeout: float | None) -> bool:
        if self._flag:
            return True
        if self._runtime.scheduler.over:
            raise Killed
        wake = Wake()
        timer = None if timeout is None else self._runtime._after(timeout, wake)
        self._waiters.append(wake)
        try:
            await wake
        finally:
            self._waiters.remove(wake)
            if timer is not None:
                cancel(timer)
        return self._flag


class SimulatedJob:
    """A task. It refers to its job while it runs."""

    def __init__(self, runtime: SimulatedRuntime, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._runtime = runtime
        self._asked = False
        self.task = runtime.start(self._run(work), name)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await work()

    def alive(self) -> bool:
        return not self.task.done()

    def cancel(self) -> None:
        if not self._asked:
            self._asked = True
            self.task.cancel()

    async def join(self, timeout: float) -> bool:
        if self.task is self._runtime.scheduler.current:
            return False
        ended = await self._done(timeout)
        if not ended:
            self.cancel()
            await self._done(CLEANUP_WITHIN)
        return ended

    async def _done(self, timeout: float) -> bool:
        if self.task.done():
            return True
        wake = Wake()
        self.task.watchers.append(wake)
        timer = self._runtime._after(timeout, wake)
        try:
            await self._runtime.pause(wake)
        finally:
            cancel(timer)
        return self.task.done()


class SimulatedCaller:
    """A task."""

    __slots__ = ("_task", "key")

    def __init__(self, task: Task[Any]) -> None:
        self.key = task.number
        self._task = task

    def alive(self) -> bool:
        return not self._task.done()


class SimulatedScope:
    """Cancels the task inside its block, and undoes that one cancellation at the end, as under asyncio."""

    __slots__ = ("_cancelling", "_inside", "_interrupted", "_owner", "_runtime", "_task")

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self._runtime = runtime
        self._inside = False
        self._interrupted = False

    def enter(self, owner: object) -> None:
        self._task = self._runtime._current()
        self._cancelling = self._task.cancelling()
        self._owner = None if owner is None else weakref.ref(owner)
        self._inside = True

    def is_over(self) -> bool:
        return not self._inside or (self._owner is not None and self._owner() is None)

    def interrupt(self) -> None:
        if not self.is_over() and not self._interrupted and self._runtime.scheduler.current is not self._task:
            self._interrupted = self._task.cancel("the lease of the lock was lost")

    def is_mine(self) -> bool:
        return self._runtime.scheduler.current is self._task

    def exit(self, error: BaseException | None) -> bool:
        self._inside = False
        if not self._interrupted:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)

"""A scheduler of coroutines in virtual time: the same seed gives the same history.

Theory of operation
-------------------
Future events are in a heap of (time, random tie-break, number). Time jumps to the next event, so an hour of waiting
costs nothing. The seed decides the order of events at the same time. Nothing else is random and no clock is read, so
the same seed gives the same history, line by line (`Scheduler.trace`).

A task belongs to a `Machine`, which simulates one operating system process. A machine can be paused, as by SIGSTOP: its
events happen after the pause, while time and the other machines go on. It can be killed: its tasks never run again,
their ``finally`` blocks have no effect on others, and its requests to others continue. Each machine has its own clock,
with an offset and a rate.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LIMIT = 1e7
"""Virtual seconds after which a run fails, since it seems to loop for ever."""

MOST_IN_A_SECOND = 100_000
"""The most events within one virtual second: a retry loop without a pause would stop the time for ever."""


RUNS = "runs"
"""The trace entry of a task that runs."""


class Killed(BaseException):
    """The machine was killed: raised by every wait of its tasks when they are dismantled at the end."""


class Stuck(RuntimeError):
    """The run makes no progress: there is no event left, or events repeat without end."""


@dataclass(eq=False, slots=True)
class Machine:
    """One process: its clock reads ``offset + rate * time``, and its wall clock is ``wall`` seconds ahead of that.

    With ``last_step`` it is killed after that many steps. ``spoke`` is the time at which it last sent a message.
    """

    name: str
    offset: float = 0.0
    rate: float = 1.0
    stopped_until: float = 0.0
    killed: bool = False
    steps: int = 0
    last_step: int | None = None
    wall: float = 0.0
    spoke: float = 0.0

    def stepped(self) -> None:
        """Count a step of one of its tasks."""
        self.steps += 1
        if self.steps == self.last_step:
            self.killed = True


Entry = list[Any]
"""A future event: ``[when, tie-break, number, machine, act]``, as the heap compares it."""


def cancel(entry: Entry) -> None:
    """Cancel a future event."""
    entry[4] = None


class Wake:
    """An awaitable that fires once. Awaiting it is the only way to suspend a task."""

    __slots__ = ("fired", "task")

    def __init__(self) -> None:
        self.fired = False
        self.task: Task[Any] | None = None

    def fire(self) -> None:
        """Resume the task."""
        if not self.fired:
            self.fired = True
            if self.task is not None:
                self.task.resume()

    def __await__(self) -> Generator[Wake, None, None]:
        yield self  # if it has fired, the task resumes at this time, in its turn


class Task(Generic[T]):
    """A coroutine on a machine, with cancellation and context variables as asyncio has them."""

    def __init__(self, scheduler: Scheduler, machine: Machine, work: Coroutine[Any, Any, T], name: str) -> None:
        self.number = scheduler.count()
        self.name = name
        self.machine = machine
        self.ended = Wake()
        self.watchers: list[Wake] = []
        self.value: T | None = None
        self.error: BaseException | None = None
        self._scheduler = scheduler
        self._work = work
        self._context = contextvars.copy_context()
        self._waits_for: Wake | None = None
        self._cancelling = 0
        self._cancelled_with: str | None = None  # a cancellation that the next step throws in
        self.resume()

    def done(self) -> bool:
        """Return whether it ended, or will never run again because its machine was killed."""
        return self.ended.fired or self.machine.killed

    def result(self) -> T:
        """Return the result or raise the error, once it ended."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    async def wait(self) -> None:
        """Wait for the end; any number of tasks may."""
        if not self.ended.fired:
            wake = Wake()
            self.watchers.append(wake)
            await wake

    def cancel(self, message: str = "") -> bool:
        """Raise CancelledError at the suspension where it is, or at its next one."""
        if self.done():
            return False
        self._cancelling += 1
        self._cancelled_with = message
        if self._waits_for is not None:
            self._waits_for.task = None
            self._waits_for = None
            self.resume()
        return True

    def cancelling(self) -> int:
        """Return how many cancellations were requested and not undone."""
        return self._cancelling

    def uncancel(self) -> int:
        """Undo one cancellation; return how many are left."""
        self._cancelling = max(0, self._cancelling - 1)
        if self._cancelling == 0:
            self._cancelled_with = None
        return self._cancelling

    def resume(self) -> None:
        """Resume it at this time, in its turn."""
        self._waits_for = None
        self._scheduler.soon(self.machine, self._step)

    def dismantle(self) -> None:
        """Close a task that will never run again, when its harness ends: every wait in its clean-up raises `Killed`."""
        for _ in range(100):
            try:
                self._context.run(self._work.throw, Killed())
            except BaseException:  # no caller can receive its errors any more
                return
        self._work.close()

    def _step(self) -> None:
        scheduler = self._scheduler
        scheduler.current = self
        scheduler.trace.append((scheduler.time, self.name, RUNS))
        try:
            if self._cancelled_with is None:
                wake = self._context.run(self._work.send, None)
            else:
                error = asyncio.CancelledError(self._cancelled_with)
                self._cancelled_with = None
                wake = self._context.run(self._work.throw, error)
        except StopIteration as stop:
            self._end(stop.value, None)
        except BaseException as error:  # kept for `result`
            self._end(None, error)
        else:
            if type(wake) is not Wake:
                scheduler.fail(RuntimeError(f"task {self.name} awaited {wake!r}, which is not of virtual time"))
            elif wake.fired or self._cancelled_with is not None:
                self.resume()
            else:
                self._waits_for, wake.task = wake, self
        finally:
            scheduler.current = None
            self.machine.stepped()

    def _end(self, value: T | None, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self._scheduler.note(self.name, "ends" if error is None else f"ends with {type(error).__name__}")
        self._scheduler.forget(self)
        for wake in (self.ended, *self.watchers):
            wake.fire()
        self.watchers.clear()


class Scheduler:
    """The heap, the time, the random numbers, and the trace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._chance = self.random.random
        self.time = 0.0
        self.current: Task[Any] | None = None
        self.trace: list[tuple[float, str, Any]] = []
        self.over = False
        self._heap: list[Entry] = []
        self._number = 0
        self._tasks: dict[int, Task[Any]] = {}
        self._failure: BaseException | None = None

    def count(self) -> int:
        """Return the next number; it never repeats."""
        self._number += 1
        return self._number

    def at(self, when: float, machine: Machine, act: Callable[[], None]) -> Entry:
        """Schedule ``act()`` on ``machine`` at ``when``."""
        self._number = number = self._number + 1
        entry = [when if when > self.time else self.time, self._chance(), number, machine, act]
        heappush(self._heap, entry)
        return entry

    def soon(self, machine: Machine, act: Callable[[], None]) -> None:
        """Schedule ``act()`` on ``machine`` at this time, in its turn."""
        self._number = number = self._number + 1
        heappush(self._heap, [self.time, self._chance(), number, machine, act])

    def spawn(self, machine: Machine, work: Coroutine[Any, Any, T], name: str) -> Task[T]:
        """Start a task."""
        if self.over or machine.killed:
            work.close()
            raise Killed
        task = Task(self, machine, work, f"{machine.name}/{name}")
        self._tasks[task.number] = task
        return task

    def forget(self, task: Task[Any]) -> None:
        """Drop a task that ended."""
        self._tasks.pop(task.number, None)

    def note(self, who: str, what: object) -> None:
        """Add a line to the trace: ``str(what)``, which must not change, is evaluated when the trace is read."""
        self.trace.append((self.time, who, what))

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        self._failure = self._failure or error

    def run(self, machine: Machine, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, and all other events until then."""
        main = self.spawn(machine, work, "main")
        try:
            self._go_on(main)
            return main.result()
        finally:
            self._dismantle()

    def written(self) -> str:
        """Return the trace as text: one line a step, the same for the same seed."""
        return "\n".join(f"{when:.9f} {who} {what}" for when, who, what in self.trace)

    def _go_on(self, main: Task[Any]) -> None:
        """Process one event after the other until ``main`` has ended."""
        heap, ended = self._heap, main.ended
        second, left = 0.0, MOST_IN_A_SECOND
        while not ended.fired:
            if self._failure is not None:
                raise self._failure
            if not heap:
                waiting = ", ".join(task.name for task in self._tasks.values() if not task.machine.killed)
                raise Stuck(f"at {self.time:.6f} s nothing can happen any more; waiting: {waiting}")
            entry = heappop(heap)
            when, _, _, machine, act = entry
            if act is None or machine.killed:
                continue
            if machine.stopped_until > when:
                entry[0] = machine.stopped_until
                heappush(heap, entry)
                continue
            self.time = when
            if when > LIMIT:
                raise Stuck(f"{main.name} has not ended after {LIMIT:.0f} virtual seconds")
            left -= 1
            if when >= second:
                second, left = when + 1.0, MOST_IN_A_SECOND
            elif left < 0:
                raise Stuck(f"no progress: at {when:.6f} s, {MOST_IN_A_SECOND} steps within a second; {self._busy()}")
            act()

    def _busy(self) -> str:
        """Return the names of the tasks that ran most often of late, the busiest first."""
        lately = Counter(who for _, who, what in self.trace[-1000:] if what == RUNS)
        return ", ".join(f"{who} ran {count} times of late" for who, count in lately.most_common(3))

    def _dismantle(self) -> None:
        self.over = True
        self._heap.clear()
        for task in list(self._tasks.values()):
            task.dismantle()
        self._tasks.clear()

"""The sleep of a waiting ticket under asyncio: one small object, without a coroutine and without a timer of its own.

A client may have many thousand waiters, most of which sleep for minutes. A coroutine keeps its frame meanwhile, and a
timer of the event loop takes as much again. So a `Sleep` implements by hand what awaits it, and far timers are shared
(`Timers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Protocol

from leasehold._model import Granted, Ticket
from leasehold.stores._common.slots import Slot

SPAN = 10.0
"""Seconds. Sleeps that end in the same ten seconds share a timer until then."""

MOST_SPANS = 64
"""With more spans than this, one that becomes empty is removed."""


class Takes(Protocol):
    """What takes the grant that a message brought."""

    def take_grant(self, slot: Slot, ticket: Ticket) -> Granted | None: ...


class Sleep(Generator[Any, None, Granted | None]):
    """Awaited, it does what `leasehold.stores.redis.handover.Waiters.sleep` and ``take_grant`` do.

    It is the signal of its slot while its task sleeps: `set` may be called from any thread.
    """

    __slots__ = ("_future", "_slot", "_takes", "_ticket", "_timers", "timer", "until")

    def __init__(self, timers: Timers, takes: Takes, slot: Slot, ticket: Ticket, until: float) -> None:
        self._timers = timers
        self._takes = takes
        self._slot = slot
        self._ticket = ticket
        self._future: asyncio.Future[None] | None = None  # that the task waits for
        self.timer: asyncio.TimerHandle | None = None  # None while it shares one
        self.until = until  # by the boot-time clock

    def __await__(self) -> Generator[Any, None, Granted | None]:
        return self

    def send(self, value: None) -> asyncio.Future[None]:
        """Begin, or go on after the task was woken: return what it waits for, or raise StopIteration with the grant."""
        slot, woken = self._slot, self._future is not None
        self._end()
        while not slot.should_retry:
            if not woken and not slot.news:  # else they came before it slept
                return self._begin()
            woken = False
            if slot.handed_over is None:
                break
            self.until, slot.handed_over = min(self.until, slot.handed_over), None  # it watches a lease from now on
            slot.clear()
        raise StopIteration(self._takes.take_grant(slot, self._ticket))

    def throw(self, kind: Any, error: Any = None, trace: TracebackType | None = None, /) -> asyncio.Future[None]:
        """End: the task is cancelled, or its loop was closed."""
        self._end()
        if isinstance(kind, BaseException):
            raise kind
        raise (kind() if error is None else error).with_traceback(trace)

    def set(self) -> None:
        """Wake the task."""
        future = self._future
        if future is None:
            return
        loop = future.get_loop()
        if asyncio._get_running_loop() is loop:
            self.wake()
        else:
            try:
                loop.call_soon_threadsafe(self.wake)
            except RuntimeError:  # the loop is closed: no task waits
                pass

    def clear(self) -> None:
        """Do nothing: the slot has the news, and the next sleep a new future."""

    def wake(self) -> None:
        """Wake the task; called in its loop."""
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def _begin(self) -> asyncio.Future[None]:
        future = self._future = asyncio.get_running_loop().create_future()
        self._slot.signal = self
        self._timers.add(self)
        waited: asyncio.Future[None] = next(future.__await__())
        if self._slot.news:  # another thread set them before this was the signal
            self.wake()
        return waited

    def _end(self) -> None:
        if self._future is not None:
            self._future = self._slot.signal = None
            self._timers.remove(self)


class Timers:
    """Wakes each sleep at its end. One timer serves all that end in the same span, until that span begins."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spans: dict[int, dict[Sleep, None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def add(self, sleep: Sleep) -> None:
        """Wake a sleep at its end."""
        loop, now = asyncio.get_running_loop(), self._now()
        if loop is not self._loop:
            self._loop, self._spans, self._timers = loop, {}, {}
        number = int(sleep.until // SPAN)
        left = number * SPAN - now
        if left <= 0:
            sleep.timer = loop.call_later(max(0.0, sleep.until - now), sleep.wake)
            return
        timer = self._timers.get(number)
        if timer is not None and timer.when() > loop.time() + left + 0.01:  # the loop's clock stops while we suspend
            timer.cancel()
            timer = None
        if timer is None:
            self._set(loop, number, left)
        self._spans.setdefault(number, {})[sleep] = None

    def remove(self, sleep: Sleep) -> None:
        """Forget a sleep that was woken."""
        if sleep.timer is not None:
            sleep.timer.cancel()
            sleep.timer = None
            return
        number = int(sleep.until // SPAN)
        span = self._spans.get(number)
        if span is not None:
            span.pop(sleep, None)  # a few empty spans stay until they begin: the next waiter ends in the same one
            if not span and len(self._spans) > MOST_SPANS:
                del self._spans[number]
                self._timers.pop(number).cancel()

    def close(self) -> None:
        """End the shared timers, and wake those that they would have woken: they find that the client is closed."""
        for timer in self._timers.values():
            timer.cancel()
        spans, self._spans, self._timers = self._spans, {}, {}
        for span in spans.values():
            for sleep in span:
                sleep.set()

    def _set(self, loop: asyncio.AbstractEventLoop, number: int, left: float) -> None:
        """Set a timer; it looks at the clock in time, as that of the loop stops while the machine is suspended."""
        self._timers[number] = loop.call_later(min(left, SPAN), self._begin, number)

    def _begin(self, number: int) -> None:
        if (left := number * SPAN - self._now()) > 0:
            self._set(asyncio.get_running_loop(), number, left)
            return
        self._timers.pop(number, None)
        span = self._spans.pop(number, {})
        try:
            while span:
                sleep = next(iter(span))
                self.add(sleep)
                del span[sleep]
        finally:
            if span:  # a signal handler raised
                self._spans.setdefault(number, {}).update(span)
                self._timers[number] = asyncio.get_running_loop().call_later(0.0, self._begin, number)

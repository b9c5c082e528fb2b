"""The signal of the asyncio runtime: a task waits for it, and any thread may set it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from leasehold._runtimes.blocking import ThreadSignal


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

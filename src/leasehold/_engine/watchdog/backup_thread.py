"""Calls callbacks in the watchdog's thread; another thread continues the schedule if a callback is slow.

Theory of operation
-------------------
The watchdog calls the callbacks of lost leases in its own thread: a switch to another thread takes milliseconds on a
busy machine. But a callback of a user may take seconds, and the renewals and deadlines of all other leases cannot wait.
So a backup thread stands by. The watchdog signals when callbacks begin and when they end. If they have not ended within
`PATIENCE`, the backup thread takes over the schedule, and the other thread ends after its callbacks.

One atomic step decides which thread has the schedule: each round of callbacks has a list of one entry. The thread that
removes the entry has the schedule: the caller when the callbacks have ended, or the backup thread before that.

Under asyncio there is one thread, and no backup: a callback that blocks it blocks every task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._engine.lease import Later
from leasehold._runtimes.base import Flavor, Job, Runtime, Signal, call_each

PATIENCE = 0.01  # seconds that callbacks may take before the backup thread takes over the schedule
LINGER = 30.0  # seconds after which an unused backup thread ends; the next callback starts another

TakeOver = Callable[[Job], Coroutine[Any, Any, None]]


class BackupThread:
    """The second thread of a watchdog, which runs while callbacks are registered."""

    def __init__(self, runtime: Runtime, take_over: TakeOver) -> None:
        self._runtime = runtime
        self._take_over = take_over
        self._began = runtime.signal()
        # The last round of callbacks: a list, empty when they have ended or were overtaken, and the signal of their
        # end. Each round has its own, since one that was overtaken may end during the next.
        self._round: tuple[list[bool], Signal] = ([], runtime.signal())
        self._job: Job | None = None
        self._closed = False

    def is_prepared(self) -> bool:
        """Return whether the thread runs, or is not needed."""
        return self._runtime.flavor is not Flavor.SYNC or self._closed or (self._job is not None and self._job.alive())

    def prepare(self) -> None:
        """Start the thread if it does not run. Called by the thread that has the schedule."""
        if not self.is_prepared():
            try:
                self._job = self._runtime.spawn(self._wait, "leasehold-backup")
            except RuntimeError:  # no thread can be started: the schedule waits for the callbacks
                self._job = None

    def later(self) -> Later | None:
        """Return a list for calls to make when all leases were checked; None under asyncio: calls are made at once."""
        return [] if self._runtime.flavor is Flavor.SYNC else None

    def call(self, calls: Later) -> bool:
        """Call each of ``calls``; return whether the calling thread still has the schedule."""
        mine, over = self._round = [True], self._runtime.signal()
        self._began.set()
        self.prepare()  # after the set: a backup thread that ends now sees the signal, or `prepare` sees its end
        try:
            call_each(calls)
        finally:
            still = _take(mine)
            over.set()
        return still

    async def close(self, within: float) -> None:
        """End the waiting thread."""
        self._closed = True
        job = self._job
        self._began.set()
        self._round[1].set()
        if job is not None:
            await job.join(within)

    async def _wait(self) -> None:
        while True:
            needed = await self._began.wait(LINGER)
            self._began.clear()
            theirs, over = self._round
            if self._closed:
                return
            if not needed and not theirs:
                job, self._job = self._job, None
                if not self._began.is_set():
                    return
                self._job = job
                continue
            while theirs and not self._closed and not await over.wait(PATIENCE):
                if self._job is None:  # the thread that started this one has not stored it yet
                    continue
                if not _take(theirs):
                    break
                job, self._job = self._job, None
                self.prepare()
                await self._take_over(job)
                return


def _take(calling: list[bool]) -> bool:
    """Take the schedule; return False if the other thread has it."""
    try:
        return calling.pop()
    except IndexError:
        return False

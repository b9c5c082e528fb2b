"""Calls holders back in the watchdog's own thread, and has another go on with the schedule if one takes its time.

Theory of operation
-------------------
A holder is to hear of its loss at once, so no other thread comes in between: on a busy machine each switch takes
milliseconds. But what users do when they have lost a lock may take seconds, and the renewals and deadlines of all
others cannot wait for it. So a second thread waits beside the watchdog's. It is told when calls begin and when they are
over; if they are not over in `PATIENCE`, it takes over the schedule, and whoever called has none to come back to.

Who has the schedule is decided by one step that cannot be interrupted: each call of holders has a list of one entry.
Whoever takes it out goes on with the schedule: who called, when the calls are over, or the second thread before that.

Under asyncio there is one thread: who blocks it in a callback blocks all of it, in whatever task it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._engine.lease import Later
from leasehold._runtimes.base import Flavor, Job, Runtime

PATIENCE = 0.01
"""Seconds that calls may take before the schedule goes on without whoever makes them."""

LINGER = 30.0
"""Seconds after which a backup thread that was not needed ends; who is to be called back starts another."""

TakeOver = Callable[[Job], Coroutine[Any, Any, None]]


class BackupThread:
    """The second thread of a watchdog, there for as long as somebody wants to be called back."""

    def __init__(self, runtime: Runtime, take_over: TakeOver) -> None:
        self._runtime = runtime
        self._take_over = take_over
        self._began = runtime.signal()
        self._over = runtime.signal()
        self._calling: list[bool] = []  # of the call that is under way; empty for none, or one that was taken over
        self._job: Job | None = None
        self._closed = False

    def is_prepared(self) -> bool:
        """Return whether nothing is to be made ready."""
        return self._runtime.flavor is not Flavor.SYNC or self._closed or (self._job is not None and self._job.alive())

    def prepare(self) -> None:
        """Be there, from now on, for calls that take their time. Called by whoever has the schedule."""
        if not self.is_prepared():
            try:
                self._job = self._runtime.spawn(self._wait, "leasehold-backup")
            except RuntimeError:  # no thread to be had: the schedule waits for the calls
                self._job = None

    def later(self) -> Later | None:
        """Return what takes calls until all holds were looked at; None in a loop: there each is made at once."""
        return [] if self._runtime.flavor is Flavor.SYNC else None

    def call(self, calls: Later) -> bool:
        """Make calls; return whether the caller still has the schedule."""
        mine = self._calling = [True]
        self._over.clear()
        self._began.set()
        self.prepare()  # after that was said: a thread that is about to end sees it, or is seen here to have ended
        try:
            for call in calls:
                call()
        finally:
            still = _take(mine)
            self._over.set()
        return still

    async def close(self, within: float) -> None:
        """End the thread that waits."""
        self._closed = True
        job = self._job
        self._began.set()
        self._over.set()
        if job is not None:
            await job.join(within)

    async def _wait(self) -> None:
        while True:
            needed = await self._began.wait(LINGER)
            self._began.clear()
            theirs = self._calling
            if self._closed:
                return
            if not needed and not theirs:
                job, self._job = self._job, None
                if not self._began.is_set():
                    return
                self._job = job
                continue
            if not theirs or await self._over.wait(PATIENCE):
                continue
            if self._closed or self._job is None or not _take(theirs):
                continue
            job, self._job = self._job, None
            self.prepare()
            await self._take_over(job)
            return


def _take(calling: list[bool]) -> bool:
    """Take the schedule; return False if the other has it."""
    try:
        return calling.pop()
    except IndexError:
        return False

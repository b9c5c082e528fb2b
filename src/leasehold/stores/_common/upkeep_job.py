"""A background job of a client: it sleeps until something is due, and ends when nothing is left.

A thread that has something new for the job first stores it, then calls `UpkeepJob.watch`. The job reads under the same
mutex when something is due, and until when it sleeps. So it is woken, or it sees what was stored, or a new one starts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from leasehold._runtimes.base import Job, Runtime
from leasehold._runtimes.log import log

T = TypeVar("T")

LINGER = 10.0
"""Seconds after which a job with nothing to do ends."""

AFTER_AN_ERROR = 0.5
"""Seconds until a job continues after an unexpected error."""


class UpkeepJob(ABC, Generic[T]):
    """Runs while there is anything to do, for one client. Thread-safe.

    ``T`` is what `_pending` lists: when to do something, for what, and the pauses before it is done again.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        """Make one that does not run; ``name`` is that of its thread."""
        self._runtime = runtime
        self._name = name
        self._mutex = runtime.mutex()
        self._wake = runtime.signal()
        self._pending: list[tuple[float, T, tuple[float, ...]]] = []
        self._taken: tuple[float, T, tuple[float, ...]] | None = None  # what the step works on
        self._job: Job | None = None
        self._sleeps_until = 0.0
        self._closed = False

    @abstractmethod
    async def _step(self) -> None:
        """Do all that is due."""

    def watch(self, until: float) -> None:
        """Make sure that the job looks at ``until``, a reading of the clock, or earlier."""
        with self._mutex:
            if self._closed:
                return
            if self._job is None or not self._job.alive():
                self._sleeps_until = 0.0
                self._job = self._runtime.spawn_loop(self._run, self._name)
            elif until < self._sleeps_until:
                self._wake.set()

    def stop(self) -> None:
        """Let the job end after the request that it sends now; it does not start again."""
        with self._mutex:
            self._closed = True
            self._wake.set()

    async def close(self, within: float) -> None:
        """Stop the job, and wait until it has ended, at most ``within`` seconds; then a task is cancelled."""
        self.stop()
        job, self._job = self._job, None
        if job is not None:
            await job.join(within)

    def _later(self, pause: float, item: T, further: tuple[float, ...]) -> None:
        when = self._runtime.now() + pause
        with self._mutex:
            self._pending.append((when, item, further))
            if self._taken is not None and self._taken[1] is item:
                self._taken = None
        self.watch(when)

    def _due(self) -> Iterator[tuple[T, tuple[float, ...]]]:
        """Take what is pending and due now, one after the other: what is not reached stays pending."""
        now = self._runtime.now()
        for pending in [pending for pending in self._pending if pending[0] <= now]:
            with self._mutex:
                self._pending.remove(pending)
            self._taken = pending
            yield pending[1:]
        self._taken = None

    def _times(self) -> list[float]:
        """Return when something is due, by the boot-time clock."""
        return [when for when, *_ in self._pending]

    async def _again(self) -> None:
        """Go on after the program cancelled the step: what that worked on is due again."""
        if self._taken is not None:
            with self._mutex:
                self._pending.append(self._taken)
        await self._runtime.sleep(AFTER_AN_ERROR)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._taken = None
            try:
                cancelled = await self._runtime.attempt(self._step(), self._name, True)
            except Exception:
                log.exception("%s failed unexpectedly; it continues", self._name)
                await self._runtime.sleep(AFTER_AN_ERROR)
            else:
                if cancelled:
                    await self._again()
            with self._mutex:
                times = self._times()
                now = self._runtime.now()
                self._sleeps_until = min(times, default=now + LINGER)
                if self._closed:
                    return
            woken = await self._wake.wait(max(0.0, self._sleeps_until - now))
            with self._mutex:
                self._sleeps_until = 0.0
                if self._closed or not (woken or times or self._times()):
                    self._job = None
                    return

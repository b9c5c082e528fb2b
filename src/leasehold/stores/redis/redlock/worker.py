"""One thread that speaks with one node for all threads of a client, in the order in which they ask.

So a blocking client has one connection to each node, whatever the number of its threads, and nobody starts a thread to
ask. A node that is stalled holds up its own worker alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._runtimes.base import Job, Runtime

LINGER = 10.0
"""Seconds after which a worker with nothing to do ends; the next question starts another."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Worker:
    """See above. Used from many threads at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._wake = self._runtime.signal()
        self._queue: deque[Work] = deque()
        self._job: Job | None = None
        self._closed = False

    def do(self, work: Work) -> None:
        """Do it when all that was asked before is done."""
        with self._mutex:
            self._queue.append(work)
            if self._job is None or not self._job.alive():
                self._job = self._runtime.spawn(self._run, "leasehold-node")
            else:
                self._wake.set()

    async def _run(self) -> None:
        while True:
            while self._queue:
                await self._queue.popleft()()
            woken = self._closed or await self._wake.wait(LINGER)
            with self._mutex:
                self._wake.clear()
                if not self._queue and (self._closed or not woken):
                    self._job = None
                    return

    async def close(self, within: float) -> None:
        """End the thread when it has done what was asked before; wait for that at most so many seconds."""
        with self._mutex:
            self._closed = True
            job = self._job
            self._wake.set()
        if job is not None:
            await job.join(within)

    def after_fork(self) -> None:
        """Start anew in a forked child."""
        self._reset()

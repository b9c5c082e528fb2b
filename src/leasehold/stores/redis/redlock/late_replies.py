"""Reads what nodes of a Redlock answer when nobody waits for it any more, and no further question goes there.

A late answer is not idle talk: it may be a refusal, after which the question is put in another way, or the end of a
connection, after which a leave is owed. It also says that the node is not stuck.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._runtimes.base import Job, Runtime
from leasehold.stores.redis.redlock.node import Node

TICK = 0.05
"""Seconds between two looks: well below `redlock_node.STUCK`."""

QUIET = 20
"""Looks that find nothing owed, after which none is taken until something is."""

LINGER = 10.0
"""Seconds after which the thread ends that has nothing to do."""


class LateReplies:
    """One job for all nodes of a blocking client, which is there while something is owed. Used from many threads."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._wake = self._runtime.signal()
        self._job: Job | None = None
        self._looks = False
        self._closed = False

    def grant_message(self) -> None:
        """Take note that something is owed."""
        if self._looks:
            return
        with self._mutex:
            if self._closed:
                return
            if self._job is None or not self._job.alive():
                self._job = self._runtime.spawn(self._run, "leasehold-late")
            self._wake.set()

    async def _run(self) -> None:
        woken = True
        while woken and not self._closed:
            self._wake.clear()
            self._looks = True
            await self._look_on()
            self._looks = False
            if self._owed():  # it began to be owed when this still looked
                continue
            woken = self._closed or await self._wake.wait(LINGER)
            with self._mutex:
                if not woken and not self._wake.is_set():
                    self._job = None
                    return
                woken = True

    async def _look_on(self) -> None:
        quiet = 0
        while quiet < QUIET and not self._closed:
            if await self._wake.wait(TICK) and not self._closed:
                self._wake.clear()  # it was called just before it began to look
            quiet = 0 if self._owed() else quiet + 1

    def _owed(self) -> bool:
        now = self._runtime.now()
        return sum(node.read(now) for node in self._nodes) > 0  # of all: any() would end at the first

    async def close(self, within: float) -> None:
        """End the thread."""
        with self._mutex:
            self._closed = True
            job = self._job
            self._wake.set()
        if job is not None:
            await job.join(within)

    def after_fork(self) -> None:
        """Start anew in a forked child."""
        self._reset()

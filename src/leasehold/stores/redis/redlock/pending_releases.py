"""Retries releases that a node did not confirm, until the node confirms them or the lease is over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import PASSING, REDIRECTS, ReplyError
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes
from leasehold.stores.redis.scripts.commands import Command

AGAIN = 0.1
"""Seconds between two attempts, at least."""

AT_ONCE = 200
"""Releases in one write."""

WITHIN = 2.0
"""Seconds that a node may take for them."""

NOT_YET = frozenset((*PASSING, *REDIRECTS))
"""Errors after which a release stays pending. After any other error it does not: it would fail again."""


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A release that a node has not confirmed, and the boot-time clock at which the node forgets the ticket."""

    command: Command
    until: float


class PendingReleases:
    """The pending releases of a client, by node. Thread-safe."""

    def __init__(self, runtime: Runtime, quorum: QuorumNodes) -> None:
        self._runtime = runtime
        self._quorum = quorum
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._releases: dict[int, deque[PendingRelease]] = {node.index: deque() for node in self._quorum.nodes}
        self._jobs: dict[int, Job] = {}
        self._wake = {node.index: self._runtime.signal() for node in self._quorum.nodes}

    def __len__(self) -> int:
        return sum(map(len, self._releases.values()))

    def retry_release(self, node: Node, command: Command, until: float) -> None:
        """Send a release in the background until the node confirms it, or its time is over."""
        with self._mutex:
            self._releases[node.index].append(PendingRelease(command, until))
            job = self._jobs.get(node.index)
            if not self._quorum.closed and (job is None or not job.alive()):
                self._jobs[node.index] = self._runtime.spawn(partial(self._retry, node), "leasehold-release")

    async def _retry(self, node: Node) -> None:
        pending, wake = self._releases[node.index], self._wake[node.index]
        while True:
            await self._send(node, pending)
            with self._mutex:
                if not pending or self._quorum.closed:
                    self._jobs.pop(node.index, None)
                    return
            await wake.wait(AGAIN * (1 + self._runtime.jitter()))

    async def _send(self, node: Node, pending: deque[PendingRelease]) -> None:
        now = self._runtime.now()
        with self._mutex:
            while pending and pending[0].until <= now:
                pending.popleft()
            some = list(pending)[:AT_ONCE]
        if not some or node.is_skipped(now) or self._quorum.closed:
            return
        asked, failure, still = node.begin_request(), None, list[PendingRelease]()
        try:
            replies = await node.run_all([pending_release.command for pending_release in some], WITHIN)
            pairs = zip(some, replies, strict=True)
            still = [
                pending_release
                for pending_release, reply in pairs
                if isinstance(reply, ReplyError) and reply.code in NOT_YET
            ]
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.end_request(asked, failure)
        if failure is None:
            with self._mutex:
                for _ in some:
                    pending.popleft()
                pending.extendleft(reversed(still))

    async def close(self, within: float) -> None:
        """End the tasks or threads. A release that is still pending ends with its lease."""
        for wake in self._wake.values():
            wake.set()
        for job in list(self._jobs.values()):
            await job.join(within)

    def after_fork(self) -> None:
        """Drop, in a forked child, the pending releases of the parent."""
        self._reset()

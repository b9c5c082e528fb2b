"""Listening at all nodes at once, for as long as somebody of this client waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import NotPermitted
from leasehold.stores.redis.redlock.node import LONGEST_REST, Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening a subscription may take."""

OPENING = 0.002
"""Seconds between two looks whether subscriptions have been opened."""

LINGER = 10.0
"""Seconds after which a listener for whom nobody waits ends."""


class Subscriptions:
    """One listener for each node: a task, or a thread. It subscribes anew when the connection breaks."""

    def __init__(self, runtime: Runtime, panel: QuorumNodes, wanted: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._quorum = panel
        self._wanted = wanted
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._jobs: dict[int, Job] = {}
        self._denied: dict[int, NotPermitted] = {}

    def generations(self) -> tuple[int, ...]:
        """Return the number of each node's subscription that stands now, 0 where none does."""
        return tuple(node.transport.generation() for node in self._quorum.nodes)

    def open(self) -> bool:
        """Start listening where nobody does; return whether a majority is heard.

        Raises:
            NotPermitted: so many nodes refuse to be listened to that it never will be.

        """
        with self._mutex:
            for node in self._quorum.nodes:
                job = self._jobs.get(node.index)
                if (job is None or not job.alive()) and not self._quorum.closed and node.index not in self._denied:
                    self._jobs[node.index] = self._runtime.spawn(partial(self._listen, node), "leasehold-listen")
        if len(self._quorum) - len(self._denied) < self._quorum.majority:
            raise next(iter(self._denied.values()))
        return sum(map(bool, self.generations())) >= self._quorum.majority

    async def opening(self, timeout: float) -> None:
        """Wait until one more node is heard, or so; at most ``timeout`` seconds."""
        await self._runtime.sleep(min(timeout, OPENING))

    async def _listen(self, node: Node) -> None:
        idle_since, pause = self._runtime.now(), 0.05
        while not self._quorum.closed:
            if self._wanted():
                idle_since = self._runtime.now()
            elif self._runtime.now() - idle_since > LINGER:
                return
            node.subscriber.rest()
            try:
                await node.transport.listen(SUBSCRIBE_WITHIN)
                pause = 0.05
                await node.transport.receive(node.subscriber, LINGER)
            except NotPermitted as error:
                self._denied[node.index] = error
                return
            except (StoreUnavailable, Unsupported):
                await node.subscriber.ready(self._runtime).wait(pause * (0.5 + self._runtime.jitter() / 2))
                pause = min(2 * pause, LONGEST_REST)

    async def close(self, within: float) -> None:
        """Wait for the listeners to end: their nodes are closed."""
        for job in list(self._jobs.values()):
            await job.join(within)

    def after_fork(self) -> None:
        """Forget, in a forked child, who listens in the parent."""
        self._reset()

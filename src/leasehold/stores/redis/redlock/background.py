"""The threads, or tasks, of a Redlock client that work on behalf of its callers.

`BackgroundCalls` asks nodes when a caller cannot send without waiting. In a blocking client each node has one thread,
which serves all threads of the client in the order in which they ask. So no caller starts a thread, and these calls
need one connection for each node. A stalled node delays its own thread alone. That thread sends all that is queued in
one write: when a service starts, hundreds of threads without a connection wait for one answer, and not for one
another's. An asyncio client has a task for each question instead; the first task sends the questions of all.

`LateReplies` reads answers that no caller waits for, while no further question goes to that node. A late answer may be
an error, after which the question is asked again, or the end of a connection, after which a release becomes pending. It
also shows that the node is not stuck.

`PendingReleases` repeats releases that a node did not confirm, until it confirms them or the lease is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from leasehold._runtimes.base import Flavor, Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import PASSING, REDIRECTS, ReplyError
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall
from leasehold.stores.redis.scripts.commands import Command

T = TypeVar("T")

LINGER = 10.0
"""Seconds without work after which a thread ends; the next work starts another."""


class OnDemand:
    """A thread, or a task, that runs while there is work. Thread-safe.

    Args:
        runtime: makes it.
        name: of the thread.
        work: does what there is to do. It returns after how many seconds it must run again; None if nothing is left.
        linger: seconds for which it waits for further work.
    """

    def __init__(
        self, runtime: Runtime, name: str, work: Callable[[], Coroutine[Any, Any, float | None]], linger: float = LINGER
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._work = work
        self._linger = linger
        self.reset()

    def reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._wake = self._runtime.signal()
        self._stop = self._runtime.signal()
        self._job: Job | None = None

    def notify(self) -> None:
        """Let it run: there is work."""
        with self._mutex:
            self._wake.set()
            if self._job is None or not self._job.alive():
                self._job = self._runtime.spawn_loop(self._run, self._name)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()  # before the work, so that work which arrives meanwhile sets it again
            pause = await self._runtime.attempt(self._work(), self._name, AGAIN)
            if not self.stopped:
                await (self._wake.wait(self._linger) if pause is None else self._stop.wait(pause))
            with self._mutex:
                if not self._wake.is_set() and (pause is None or self.stopped):
                    self._job = None
                    return

    def stop(self) -> None:
        """Let it end after the work that there is now."""
        with self._mutex:
            self._stop.set()
            self._wake.set()

    async def join(self, within: float) -> None:
        job = self._job
        if job is not None:
            await job.join(within)


Work = Callable[[], Coroutine[Any, Any, None]]

NodeWork = Callable[[Node], Coroutine[Any, Any, T]]

Asking = tuple[Question[Any], QuorumCall[Any], Command]

AT_ONCE = 200
"""Questions, or releases, in one write."""

MOST_JOBS = 64
"""Number of tasks above which ended ones are dropped."""


class BackgroundCalls:
    """See the top of the file. Thread-safe."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self._nodes = nodes
        # Tasks of one loop share a connection and cost little. Threads do neither.
        busy = nodes if runtime.flavor is Flavor.SYNC else ()
        self._workers = [OnDemand(runtime, "leasehold-node", partial(self._work_off, node)) for node in busy]
        self._reset()

    def _reset(self) -> None:
        self._queues: list[deque[Work]] = [deque() for _ in self._nodes]
        self._asked: list[deque[tuple[Asking, bool]]] = [deque() for _ in self._nodes]
        self._jobs: dict[Job, None] = {}
        self._most_jobs = MOST_JOBS

    @property
    def threads(self) -> bool:
        """Whether threads do the calls, and not tasks."""
        return bool(self._workers)

    def do(self, node: Node, work: Work) -> None:
        """Run ``work`` in the background, after earlier work for this node."""
        if self._workers:
            self._queues[node.index].append(work)
            self._workers[node.index].notify()
            return
        if len(self._jobs) >= self._most_jobs:
            self._jobs = {job: None for job in self._jobs if job.alive()}
            self._most_jobs = max(MOST_JOBS, 2 * len(self._jobs))  # so the scan costs little for each task
        self._jobs[self._runtime.spawn(work, "leasehold-node")] = None

    async def _work_off(self, node: Node) -> None:
        queue = self._queues[node.index]
        while queue:
            await queue.popleft()()

    def ask(self, question: Question[T], node: Node, call: QuorumCall[T], *, even_skipped: bool = False) -> None:
        call.in_background = True
        # The command is made now: from here on the node counts as asked, so the ticket's release does not leave it out.
        self._asked[node.index].append(((question, call, question.command(node)), even_skipped))
        self.do(node, partial(self._ask_on, node))

    def run(self, work: NodeWork[T], node: Node, call: QuorumCall[T], *, even_skipped: bool = False) -> None:
        """Run ``work`` for a node, as `ask` does for one script."""
        self.do(node, partial(self._run, node, work, call, even_skipped))

    async def _ask_on(self, node: Node) -> None:
        due = self._due(node)
        if not due:
            return
        replies: Sequence[Any] = ()
        request = node.open_request()
        try:
            with request:
                within = max(question.until for question, _, _ in due) - self._runtime.now()
                replies = await node.ask_all([command for _, _, command in due], max(within, 0.001))
        finally:
            for index, (question, call, _) in enumerate(due):
                call.settle(node.index, *question.take(node, request.failure or replies[index]))

    def _due(self, node: Node) -> list[Asking]:
        """Take the questions to ask now."""
        asked, now, due = self._asked[node.index], self._runtime.now(), list[Asking]()
        while asked and len(due) < AT_ONCE:
            asking, even_skipped = asked.popleft()
            question, call, _ = asking
            if now > question.until:
                call.settle(node.index, *question.take(node, StoreUnavailable("no time was left to ask it")))
            elif even_skipped or not _skips(node, call, now):
                due.append(asking)
        return due

    async def _run(self, node: Node, work: NodeWork[T], call: QuorumCall[T], even_skipped: bool) -> None:
        if not even_skipped and _skips(node, call, self._runtime.now()):
            return
        answer: T | None = None
        request = node.open_request()
        try:
            with request:
                answer = await work(node)
        finally:
            call.settle(node.index, answer, request.failure)

    async def close(self, within: float) -> None:
        """Wait for each running task and worker, at most ``within`` seconds."""
        for job in [job for job in self._jobs.copy() if job.alive()]:
            await job.join(within)
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            await worker.join(within)
        self._jobs.clear()

    def after_fork(self) -> None:
        self._reset()
        for worker in self._workers:
            worker.reset()


def _skips(node: Node, call: QuorumCall[Any], now: float) -> bool:
    """Skip a node that did not answer an earlier question meanwhile."""
    if not node.is_skipped(now):
        return False
    call.skip(node, node.why_skipped(now))
    return True


TICK = 0.05
"""Seconds between two reads: well below `node.STUCK`."""

IDLE_READS = 20
"""Reads that find no open answer, after which reading pauses until there is one."""


class LateReplies:
    """One thread for all nodes of a blocking client, alive while answers are open. Thread-safe."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._reading = False
        self._idle = 0
        self.job = OnDemand(runtime, "leasehold-replies", self._read)

    def notify(self) -> None:
        """Start reading: answers are open."""
        if not self._reading and not self.job.stopped:
            self.job.notify()

    async def _read(self) -> float | None:
        if not self._reading:
            self._reading, self._idle = True, 0
            return TICK
        self._idle = 0 if self._read_all() else self._idle + 1
        self._reading = self._idle < IDLE_READS
        if not self._reading and self._read_all():  # an answer became open while it still read
            self._reading, self._idle = True, 0
        return TICK if self._reading else None

    def _read_all(self) -> bool:
        now = self._runtime.now()
        return sum(node.read(now) for node in self._nodes) > 0  # a sum, since any() would stop at the first

    def after_fork(self) -> None:
        self._reading = False
        self.job.reset()


AGAIN = 0.1
"""Seconds between two attempts of a release, at least."""

RELEASE_WITHIN = 2.0
"""Seconds that a node may take for releases."""

NOT_YET = frozenset((*PASSING, *REDIRECTS))
"""Errors after which a release stays pending. After any other error it does not: it would fail again."""


class PendingReleases:
    """The pending releases of a client, by node. Thread-safe."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self._jobs = [OnDemand(runtime, "leasehold-release", partial(self._send, node), 0.0) for node in nodes]
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        # each with the boot-time clock at which the node forgets the ticket
        self._releases: list[deque[tuple[Command, float]]] = [deque() for _ in self._jobs]

    def __len__(self) -> int:
        return sum(map(len, self._releases))

    def retry_release(self, node: Node, command: Command, until: float) -> None:
        """Send a release in the background until the node confirms it, or its time is over."""
        with self._mutex:
            self._releases[node.index].append((command, until))
        if not self._jobs[node.index].stopped:
            self._jobs[node.index].notify()

    async def _send(self, node: Node) -> float | None:
        """Send what is due; return seconds until the next attempt, None if nothing is pending."""
        now, pending = self._runtime.now(), self._releases[node.index]
        with self._mutex:
            while pending and pending[0][1] <= now:
                pending.popleft()
            some = list(pending)[:AT_ONCE]
        if some and not node.is_skipped(now) and not self._jobs[node.index].stopped:
            with node.open_request():
                replies = await node.run_all([command for command, _ in some], RELEASE_WITHIN)
                still = [
                    release
                    for release, reply in zip(some, replies, strict=True)
                    if isinstance(reply, ReplyError) and reply.code in NOT_YET
                ]
                with self._mutex:
                    for _ in some:
                        pending.popleft()
                    pending.extendleft(reversed(still))
        return AGAIN * (1 + self._runtime.jitter()) if pending else None

    def stop(self) -> None:
        """Send nothing more. A release that is still pending ends with its lease."""
        for job in self._jobs:
            job.stop()

    async def join(self, within: float) -> None:
        for job in self._jobs:
            await job.join(within)

    def after_fork(self) -> None:
        self._reset()
        for job in self._jobs:
            job.reset()

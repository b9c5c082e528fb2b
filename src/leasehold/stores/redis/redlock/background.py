"""The threads, or tasks, that call the nodes of a Redlock on behalf of others.

`Worker`: each node of a blocking client has one thread, which serves all threads of the client in the order in which
they ask. So no caller starts a thread, and these calls need one connection for each node. A stalled node delays its own
worker alone.

`BackgroundCalls`: questions of callers that cannot send them without waiting. The worker sends all that is queued in
one write. When a service starts, hundreds of threads without a connection thus wait for one answer, and not for one
another's. An asyncio client has a task for each question instead; the first task sends the questions of all.

`LateReplies`: reads answers that no caller waits for, while no further question goes to that node. A late answer
matters: it may be an error, after which the question is asked in another way, or the end of a connection, after which a
release becomes pending. It also shows that the node is not stuck.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from leasehold._runtimes.base import Flavor, Job, Runtime
from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall

LINGER = 10.0
"""Seconds without work after which a thread ends; the next question starts another."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Worker:
    """See the top of the file. Thread-safe."""

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
        """Run ``work`` after all earlier work."""
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
        """End the thread after the queued work; wait for that at most ``within`` seconds."""
        with self._mutex:
            self._closed = True
            job = self._job
            self._wake.set()
        if job is not None:
            await job.join(within)

    def after_fork(self) -> None:
        """Start again in a forked child."""
        self._reset()


T = TypeVar("T")

AT_ONCE = 200
"""Questions in one write."""

MOST_JOBS = 64
"""Number of tasks above which ended ones are dropped."""

OnSkipped = Callable[[Node], None]
"""Called for a node that is not asked, because it is skipped by now."""

Asking = tuple[Question[Any], QuorumCall[Any], OnSkipped | None]


class BackgroundCalls:
    """See the top of the file. Thread-safe."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        # Tasks of one loop share a connection and cost little. Threads do neither.
        self._workers = [Worker(runtime) for _ in nodes] if runtime.flavor is Flavor.SYNC else []
        self._nodes = nodes
        self._reset()

    def _reset(self) -> None:
        self._asked: list[deque[Asking]] = [deque() for _ in self._nodes]
        self._jobs: dict[Job, None] = {}
        self._most_jobs = MOST_JOBS

    @property
    def threads(self) -> bool:
        """Whether threads do the calls, and not tasks."""
        return bool(self._workers)

    def do(self, node: Node, work: Work) -> None:
        """Run ``work`` in the background, after earlier work for this node."""
        if self._workers:
            self._workers[node.index].do(work)
        else:
            self._spawn(work)

    def ask(self, node: Node, question: Question[T], call: QuorumCall[T], on_skipped: OnSkipped | None) -> None:
        """Ask a node a question; without ``on_skipped`` even if the node is skipped."""
        call.in_background = True
        self._asked[node.index].append((question, call, on_skipped))
        self.do(node, partial(self._ask_on, node))

    def run(
        self,
        node: Node,
        work: Callable[[Node], Coroutine[Any, Any, T]],
        call: QuorumCall[T],
        on_skipped: OnSkipped | None,
    ) -> None:
        """Run ``work`` for a node, as `ask` does for one script."""
        self.do(node, partial(self._run, node, work, call, on_skipped))

    async def _ask_on(self, node: Node) -> None:
        due = self._due(node)
        if not due:
            return
        asked = node.begin_request()
        failure: LeaseholdError | None = _interrupted(node)
        replies = list[Any]()
        try:
            within = max(question.until for question, _ in due) - self._runtime.now()
            replies = await node.ask_all([question.command(node) for question, _ in due], max(within, 0.001))
            failure = None
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.end_request(asked, failure)
            for index, (question, call) in enumerate(due):
                call.settle(node.index, *question.take(node, failure or replies[index]))

    def _due(self, node: Node) -> list[tuple[Question[Any], QuorumCall[Any]]]:
        """Take the questions to ask now."""
        asked, now, due = self._asked[node.index], self._runtime.now(), list[tuple[Question[Any], QuorumCall[Any]]]()
        while asked and len(due) < AT_ONCE:
            question, call, on_skipped = asked.popleft()
            if now > question.until:
                call.settle(node.index, None, StoreUnavailable("no time was left to ask it"))
            elif not self._skips(node, call, on_skipped, now):
                due.append((question, call))
        return due

    async def _run(
        self,
        node: Node,
        work: Callable[[Node], Coroutine[Any, Any, T]],
        call: QuorumCall[T],
        on_skipped: OnSkipped | None,
    ) -> None:
        if self._skips(node, call, on_skipped, self._runtime.now()):
            return
        asked = node.begin_request()
        failure: LeaseholdError | None = _interrupted(node)
        answer: T | None = None
        try:
            answer, failure = await work(node), None
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.end_request(asked, failure)
            call.settle(node.index, answer, failure)

    def _skips(self, node: Node, call: QuorumCall[Any], on_skipped: OnSkipped | None, now: float) -> bool:
        if on_skipped is None or not node.is_skipped(now):
            return False
        call.skip(node, node.why_skipped(now), on_skipped)  # an earlier question was not answered meanwhile
        return True

    def _spawn(self, work: Work) -> None:
        if len(self._jobs) >= self._most_jobs:
            self._jobs = {job: None for job in self._jobs if job.alive()}
            self._most_jobs = max(MOST_JOBS, 2 * len(self._jobs))  # so the scan costs little for each task
        self._jobs[self._runtime.spawn(work, "leasehold-node")] = None

    async def close(self, within: float) -> None:
        """Wait for each running task and worker, at most ``within`` seconds."""
        for job in [job for job in self._jobs.copy() if job.alive()]:
            await job.join(within)
        for worker in self._workers:
            await worker.close(within)
        self._jobs.clear()

    def after_fork(self) -> None:
        """Start again in a forked child."""
        self._reset()
        for worker in self._workers:
            worker.after_fork()


def _interrupted(node: Node) -> StoreUnavailable:
    return StoreUnavailable(f"the request to {node.where} was interrupted", unknown=True)


TICK = 0.05
"""Seconds between two reads: well below `node.STUCK`."""

IDLE_READS = 20
"""Reads that find no open answer, after which reading pauses until there is one."""


class LateReplies:
    """One thread for all nodes of a blocking client, alive while answers are open. Thread-safe."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._wake = self._runtime.signal()
        self._job: Job | None = None
        self._reading = False
        self._closed = False

    def notify(self) -> None:
        """Start reading: answers are open."""
        if self._reading:
            return
        with self._mutex:
            if self._closed:
                return
            if self._job is None or not self._job.alive():
                self._job = self._runtime.spawn(self._run, "leasehold-replies")
            self._wake.set()

    async def _run(self) -> None:
        woken = True
        while woken and not self._closed:
            self._wake.clear()
            self._reading = True
            await self._read_on()
            self._reading = False
            if self._read_all():  # an answer became open while this still read
                continue
            woken = self._closed or await self._wake.wait(LINGER)
            with self._mutex:
                if not woken and not self._wake.is_set():
                    self._job = None
                    return
                woken = True

    async def _read_on(self) -> None:
        idle = 0
        while idle < IDLE_READS and not self._closed:
            if await self._wake.wait(TICK) and not self._closed:
                self._wake.clear()  # notified just before it began to read
            idle = 0 if self._read_all() else idle + 1

    def _read_all(self) -> bool:
        now = self._runtime.now()
        return sum(node.read(now) for node in self._nodes) > 0  # a sum, since any() would stop at the first

    async def close(self, within: float) -> None:
        """End the thread."""
        with self._mutex:
            self._closed = True
            job = self._job
            self._wake.set()
        if job is not None:
            await job.join(within)

    def after_fork(self) -> None:
        """Start again in a forked child."""
        self._reset()

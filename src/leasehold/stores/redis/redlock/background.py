"""What other threads, or tasks, do for those who ask the nodes of a Redlock.

Questions to the nodes of a Redlock that other threads, or tasks, ask for those who cannot ask themselves.

Each node of a blocking client has one thread for that (`Worker`). All that is to be asked when it gets to it goes in
one write: hundreds of threads that have no connection yet, as when a service starts, wait for one answer and not for
one another's. An asyncio client has a task for each question instead, of which the first takes what is there for all.

One thread that speaks with one node for all threads of a client, in the order in which they ask.

So a blocking client has one connection to each node, whatever the number of its threads, and nobody starts a thread to
ask. A node that is stalled holds up its own worker alone.

Reads what nodes of a Redlock answer when nobody waits for it any more, and no further question goes there.

A late answer is not idle talk: it may be a refusal, after which the question is put in another way, or the end of a
connection, after which a leave is owed. It also says that the node is not stuck.
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


T = TypeVar("T")

AT_ONCE = 200
"""Questions in one write."""

MOST_JOBS = 64
"""Tasks from which on those that have ended are forgotten."""

Skip = Callable[[Node], None]
"""Told of a node that is not asked, since it rests by now."""

Asking = tuple[Question[Any], QuorumCall[Any], Skip | None]


class BackgroundCalls:
    """See above. Used from many threads at once."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        # Tasks of one loop share a connection as it is, and cost little; threads do neither.
        self._workers = [Worker(runtime) for _ in nodes] if runtime.flavor is Flavor.SYNC else []
        self._nodes = nodes
        self._reset()

    def _reset(self) -> None:
        self._asked: list[deque[Asking]] = [deque() for _ in self._nodes]
        self._jobs: dict[Job, None] = {}
        self._most_jobs = MOST_JOBS

    @property
    def threads(self) -> bool:
        """Whether other threads do it, and not tasks of the same."""
        return bool(self._workers)

    def do(self, node: Node, work: Work) -> None:
        """Do something beside, after all that was asked of this node before."""
        if self._workers:
            self._workers[node.index].do(work)
        else:
            self._spawn(work)

    def ask(self, node: Node, question: Question[T], call: QuorumCall[T], skip: Skip | None) -> None:
        """Put a question to a node; without ``skip`` even if it rests."""
        call.in_background = True
        self._asked[node.index].append((question, call, skip))
        self.do(node, partial(self._ask_on, node))

    def run(
        self, node: Node, work: Callable[[Node], Coroutine[Any, Any, T]], call: QuorumCall[T], skip: Skip | None
    ) -> None:
        """Put something to a node that is more than one script."""
        self.do(node, partial(self._run, node, work, call, skip))

    async def _ask_on(self, node: Node) -> None:
        due = self._due(node)
        if not due:
            return
        asked = node.begin_request()
        failure: LeaseholdError | None = _broken_off(node)
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
        """Take what is to be asked now."""
        asked, now, due = self._asked[node.index], self._runtime.now(), list[tuple[Question[Any], QuorumCall[Any]]]()
        while asked and len(due) < AT_ONCE:
            question, call, skip = asked.popleft()
            if now > question.until:
                call.settle(node.index, None, StoreUnavailable("no time was left to ask it"))
            elif not self._skips(node, call, skip, now):
                due.append((question, call))
        return due

    async def _run(
        self, node: Node, work: Callable[[Node], Coroutine[Any, Any, T]], call: QuorumCall[T], skip: Skip | None
    ) -> None:
        if self._skips(node, call, skip, self._runtime.now()):
            return
        asked = node.begin_request()
        failure: LeaseholdError | None = _broken_off(node)
        answer: T | None = None
        try:
            answer, failure = await work(node), None
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.end_request(asked, failure)
            call.settle(node.index, answer, failure)

    def _skips(self, node: Node, call: QuorumCall[Any], skip: Skip | None, now: float) -> bool:
        if skip is None or not node.is_skipped(now):
            return False
        call.skip(node, node.why_skipped(now), skip)  # another question, asked before this one, was not answered
        return True

    def _spawn(self, work: Work) -> None:
        if len(self._jobs) >= self._most_jobs:
            self._jobs = {job: None for job in self._jobs if job.alive()}
            self._most_jobs = max(MOST_JOBS, 2 * len(self._jobs))  # so that looking costs little for each
        self._jobs[self._runtime.spawn(work, "leasehold-node")] = None

    async def close(self, within: float) -> None:
        """Wait a moment for what is still out, each."""
        for job in [job for job in self._jobs.copy() if job.alive()]:
            await job.join(within)
        for worker in self._workers:
            await worker.close(within)
        self._jobs.clear()

    def after_fork(self) -> None:
        """Start anew in a forked child."""
        self._reset()
        for worker in self._workers:
            worker.after_fork()


def _broken_off(node: Node) -> StoreUnavailable:
    return StoreUnavailable(f"the question to {node.where} was broken off", unknown=True)


TICK = 0.05
"""Seconds between two looks: well below `node.STUCK`."""

IDLE_READS = 20
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
        self._reading = False
        self._closed = False

    def notify(self) -> None:
        """Take note that something is owed."""
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
            if self._read_all():  # it began to be owed when this still looked
                continue
            woken = self._closed or await self._wake.wait(LINGER)
            with self._mutex:
                if not woken and not self._wake.is_set():
                    self._job = None
                    return
                woken = True

    async def _read_on(self) -> None:
        quiet = 0
        while quiet < IDLE_READS and not self._closed:
            if await self._wake.wait(TICK) and not self._closed:
                self._wake.clear()  # it was called just before it began to look
            quiet = 0 if self._read_all() else quiet + 1

    def _read_all(self) -> bool:
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

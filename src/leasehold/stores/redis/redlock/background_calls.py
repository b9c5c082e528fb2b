"""Questions to the nodes of a Redlock that other threads, or tasks, ask for those who cannot ask themselves.

Each node of a blocking client has one thread for that (`Worker`). All that is to be asked when it gets to it goes in
one write: hundreds of threads that have no connection yet, as when a service starts, wait for one answer and not for
one another's. An asyncio client has a task for each question instead, of which the first takes what is there for all.
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
from leasehold.stores.redis.redlock.worker import Work, Worker

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
        call.elsewhere = True
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
        asked = node.begins()
        failure: LeaseholdError | None = _broken_off(node)
        replies = list[Any]()
        try:
            within = max(question.until for question, _ in due) - self._runtime.now()
            replies = await node.ask_all([question.command(node) for question, _ in due], max(within, 0.001))
            failure = None
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.ends(asked, failure)
            for index, (question, call) in enumerate(due):
                call.settle(node.index, *question.take(node, failure or replies[index]))

    def _due(self, node: Node) -> list[tuple[Question[Any], QuorumCall[Any]]]:
        """Take what is to be asked now."""
        asked, now, due = self._asked[node.index], self._runtime.now(), list[tuple[Question[Any], QuorumCall[Any]]]()
        while asked and len(due) < AT_ONCE:
            question, call, skip = asked.popleft()
            if now > question.until:
                call.settle(node.index, None, StoreUnavailable("no time was left to ask it"))
            elif not self._passed_over(node, call, skip, now):
                due.append((question, call))
        return due

    async def _run(
        self, node: Node, work: Callable[[Node], Coroutine[Any, Any, T]], call: QuorumCall[T], skip: Skip | None
    ) -> None:
        if self._passed_over(node, call, skip, self._runtime.now()):
            return
        asked = node.begins()
        failure: LeaseholdError | None = _broken_off(node)
        answer: T | None = None
        try:
            answer, failure = await work(node), None
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.ends(asked, failure)
            call.settle(node.index, answer, failure)

    def _passed_over(self, node: Node, call: QuorumCall[Any], skip: Skip | None, now: float) -> bool:
        if skip is None or not node.rests(now):
            return False
        call.pass_over(node, node.why(now), skip)  # another question, asked before this one, was not answered
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

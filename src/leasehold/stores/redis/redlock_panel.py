"""The nodes of a Redlock seen from one client: asked all at once, and nobody waits for the slow.

Theory of operation
-------------------
Each question goes to every node by a task of its own, or by the thread of that node, and whoever asks goes on as soon
as what has been answered is enough. What is answered later is not lost: it ends its own task, and what it did on the
node is undone by the ticket's leave, which names the token.

A node that gave no answer rests for a while, longer each time, and one that owes an answer for longer than `STUCK` is
asked nothing new. Neither holds up anybody, and neither is connected to at each call. If too few others are left, all
are asked all the same: nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.runtimes.base import Colour, Job, Runtime
from leasehold.stores.redis.redlock_node import Node
from leasehold.stores.redis.redlock_votes import majority
from leasehold.stores.redis.redlock_worker import Worker

T = TypeVar("T")

CLOSE_WITHIN = 0.5
"""Seconds that closing waits for questions that are still out, each."""


MOST_JOBS = 64
"""Tasks from which on those that have ended are forgotten."""


class Poll(Generic[T]):
    """The answers to one question, as they come. Used from many threads at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._signal = runtime.signal()
        self._enough: Callable[[Poll[T]], bool] | None = None
        self.answers: dict[int, T] = {}
        self.failures: dict[int, LeaseholdError] = {}
        self.waiting: set[int] = set()

    def expect(self, node: int) -> None:
        """Take note that a node was asked."""
        self.waiting.add(node)

    def settle(self, node: int, answer: T | None, failure: LeaseholdError | None) -> None:
        """Take what a node answered."""
        with self._mutex:
            self.waiting.discard(node)
            if failure is not None:
                self.failures[node] = failure
            elif answer is not None:
                self.answers = {**self.answers, node: answer}
            if self._enough is not None and (not self.waiting or self._enough(self)):
                self._signal.set()

    async def until(self, enough: Callable[[Poll[T]], bool], runtime: Runtime, until: float) -> Mapping[int, T]:
        """Wait until it is enough, all have answered, or the time is over; return the answers so far."""
        with self._mutex:
            self._enough = enough
            self._signal.clear()
            done = not self.waiting or enough(self)
        if not done:
            await self._signal.wait(max(until - runtime.now(), 0.0))
        with self._mutex:
            self._enough = None
            return self.answers

    def unknown(self) -> bool:
        """Say whether a node may have done what it did not answer."""
        lost = (isinstance(error, StoreUnavailable) and error.unknown for error in self.failures.values())
        return bool(self.waiting) or any(lost)


class Panel:
    """All nodes."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self.nodes = nodes
        self.majority = majority(len(nodes))
        self._jobs: dict[Job, None] = {}
        self._most_jobs = MOST_JOBS
        # Tasks of one loop share a connection as it is, and cost little; threads do neither.
        self._workers = [Worker(runtime) for _ in nodes] if runtime.colour is Colour.BLOCKING else []
        self.closed = False

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def where(self) -> str:
        """All of them, for messages to people."""
        return ", ".join(node.where for node in self.nodes)

    def ask(
        self,
        work: Callable[[Node], Coroutine[Any, Any, T]],
        *,
        only: Iterable[Node] | None = None,
        skipped: Callable[[Node], None] | None = None,
        rested: bool = False,
        until: float = float("inf"),
    ) -> Poll[T]:
        """Ask all nodes, or those in ``only``, if they do not rest (``rested``: even so).

        ``skipped`` is told which are not asked. What has not been sent at the boot-time clock ``until`` never is.
        """
        poll: Poll[T] = Poll(self._runtime)
        now = self._runtime.now()
        those = self.nodes if only is None else list(only)
        awake = [node for node in those if rested or not node.rests(now)]
        if only is None and len(awake) < self.majority:
            awake, rested = list(those), True
        for node in awake:
            poll.expect(node.index)

        def skip(node: Node) -> None:
            if skipped is not None:
                skipped(node)

        for node in those:
            if node in awake:
                one = partial(self._one, node, work, poll, until, None if rested else skip)
                self._beside(node, one)
            else:
                poll.failures[node.index] = node.why(now)
                skip(node)
        return poll

    async def _one(
        self,
        node: Node,
        work: Callable[[Node], Coroutine[Any, Any, T]],
        poll: Poll[T],
        until: float,
        skip: Callable[[Node], None] | None,
    ) -> None:
        now = self._runtime.now()
        if now > until:
            return poll.settle(node.index, None, StoreUnavailable("no time was left to ask it"))
        if skip is not None and node.rests(now):  # another question, asked before this one, was not answered
            skip(node)
            return poll.settle(node.index, None, node.why(now))
        asked = node.begins()
        failure: LeaseholdError | None = StoreUnavailable(f"the question to {node.where} was broken off", unknown=True)
        answer: T | None = None
        try:
            answer, failure = await work(node), None
        except (StoreUnavailable, Unsupported) as error:
            failure = error
        finally:
            node.ends(asked, failure)
            poll.settle(node.index, answer, failure)

    def _beside(self, node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._workers:
            self._workers[node.index].do(work)
        else:
            self._spawn(work)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if len(self._jobs) >= self._most_jobs:
            self._jobs = {job: None for job in self._jobs if job.alive()}
            self._most_jobs = max(MOST_JOBS, 2 * len(self._jobs))  # so that looking costs little for each
        self._jobs[self._runtime.spawn(work, "leasehold-node")] = None

    def too_few(
        self, poll: Poll[Any], answers: Mapping[int, Any], what: str, others: Mapping[int, str]
    ) -> StoreUnavailable:
        """Make the error that says how many of how many nodes answered, and what is the matter with each other.

        ``others``: what is the matter with nodes that did answer.
        """
        why = {node.index: "no answer in time" for node in self.nodes if node.index not in answers}
        why |= {index: str(error) for index, error in poll.failures.items() if index in why}
        why |= others
        silent = [f"{self.nodes[index].where}: {reason}" for index, reason in sorted(why.items())]
        count = len(self.nodes) - len(silent)
        text = f"too few nodes {what}: {count} of {len(self.nodes)}, and it takes {self.majority}"
        return StoreUnavailable("; ".join([text, *silent]), unknown=poll.unknown() or len(answers) > 0)

    async def close(self) -> None:
        """End all connections, and wait a moment for questions that are still out."""
        self.closed = True
        for node in self.nodes:
            await node.close()
        for job in [job for job in self._jobs.copy() if job.alive()]:
            await job.join(CLOSE_WITHIN)
        for worker in self._workers:
            await worker.close(CLOSE_WITHIN)
        self._jobs.clear()

    def after_fork(self, channel: bytes) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        self._jobs = {}
        self.closed = False
        for worker in self._workers:
            worker.after_fork()
        for node in self.nodes:
            node.after_fork(channel)

"""The nodes of a Redlock seen from one client: asked all at once, and nobody waits for the slow.

Theory of operation
-------------------
Whoever asks sends its question to every node itself, one after the other and without waiting (`wires.redis.posting`),
then reads what comes until that is enough, and goes on. No other thread or task has a part in it. What each can see:

* A node sees its own question alone, on a connection where others may have gone before. It may carry it out after the
  asker went on, and after later questions that came on other connections. So each question is one that may be repeated
  and may come late: a claim that comes after its ticket's leave finds a higher token, and gets no vote.
* The asker sees a majority, and of the others nothing. Their answers are read by whoever uses the connection next, or
  within `redlock_late.TICK`. They end the node's debt, and where one is a refusal, as of a script that the node does
  not know, the question is put again beside.
* Where no connection is to be had, the question goes by the thread of that node (`Worker`), or by a task; so does all
  that is not urgent. That thread makes the connection of which there was too few. Whoever asks waits for a majority of
  all, so a thread that cannot connect holds up nobody.
* If the asker is interrupted in the middle, its half written connections are closed, and whatever they owed is told as
  lost: then a leave is owed to the node. If it dies, the nodes know a ticket that nobody renews.

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
from leasehold.stores.redis.commands import Command
from leasehold.stores.redis.redlock_late import Late
from leasehold.stores.redis.redlock_node import Node
from leasehold.stores.redis.redlock_poll import Poll, Question
from leasehold.stores.redis.redlock_votes import majority
from leasehold.stores.redis.redlock_worker import Worker
from leasehold.wires.redis.base import ReplyError

T = TypeVar("T")

CLOSE_WITHIN = 0.5
"""Seconds that closing waits for questions that are still out, each."""

CONNECT_WITHIN = 2.0
"""Seconds that connecting may take for those who come later."""

MOST_JOBS = 64
"""Tasks from which on those that have ended are forgotten."""


class Packed:
    """Packs a command once for all nodes that get the same."""

    __slots__ = ("_bytes", "_command")

    def __init__(self) -> None:
        self._command: Command | None = None
        self._bytes = b""

    def of(self, command: Command) -> bytes:
        """Return the packed command."""
        if command is not self._command:
            script, keys, args = self._command = command
            self._bytes = script.by_digest(keys, args)
        return self._bytes


class Posted(Generic[T]):
    """A question that was sent to one node. Called by whoever reads the answer; see `Answered`."""

    __slots__ = ("_node", "_panel", "_poll", "_question")

    def __init__(self, panel: Panel, node: Node, question: Question[T], poll: Poll[T]) -> None:
        self._panel = panel
        self._node = node
        self._question = question
        self._poll = poll

    def __call__(self, reply: Any, failure: StoreUnavailable | None) -> None:
        node, question = self._node, self._question
        answer: T | None = None
        if failure is None:
            node.answers(self, self._panel.now())
            if isinstance(reply, ReplyError):
                self._panel.ask_again(node, question, self._poll)
                return
            try:
                answer = question.read(node, reply)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                failure = StoreUnavailable(f"what {node.where} answered cannot be read: {error}", unknown=True)
        else:
            node.ends(self, failure)
        if failure is not None:
            question.lost(node)
        self._poll.settle(node.index, answer, failure)


class Panel:
    """All nodes."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self.now = runtime.now
        self.nodes = nodes
        self.majority = majority(len(nodes))
        self._jobs: dict[Job, None] = {}
        self._most_jobs = MOST_JOBS
        # Tasks of one loop share a connection as it is, and cost little; threads do neither.
        self._workers = [Worker(runtime) for _ in nodes] if runtime.colour is Colour.BLOCKING else []
        self._late = Late(runtime, nodes)
        self.closed = False

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def where(self) -> str:
        """All of them, for messages to people."""
        return ", ".join(node.where for node in self.nodes)

    def ask(self, question: Question[T], *, only: Iterable[Node] | None = None) -> Poll[T]:
        """Ask all nodes, or those in ``only``, if they do not rest. Whoever asks leaves the poll in the end."""
        poll: Poll[T] = Poll(self._runtime, self._late.notice)
        try:
            those, asked, rested = self._pick(poll, only, rested=False)
            packed = Packed()
            for node in those:
                if node not in asked:
                    question.skipped(node)
                elif not self._post(node, question, poll, packed):
                    self._ask_beside(node, question, poll, None if rested else question.skipped)
                    self._connect(node)
        except BaseException:
            poll.leave()
            raise
        return poll

    def ask_beside(
        self,
        work: Callable[[Node], Coroutine[Any, Any, T]],
        *,
        only: Iterable[Node] | None = None,
        rested: bool = False,
    ) -> Poll[T]:
        """Let other threads, or tasks, ask all nodes, or those in ``only``, that do not rest (``rested``: even so)."""
        poll: Poll[T] = Poll(self._runtime, self._late.notice)
        those, asked, rested = self._pick(poll, only, rested=rested)
        for node in those:
            if node in asked:
                self._beside(node, partial(self._one, node, work, poll, float("inf"), None if rested else _nothing))
        return poll

    def _pick(
        self, poll: Poll[Any], only: Iterable[Node] | None, *, rested: bool
    ) -> tuple[Sequence[Node], Sequence[Node], bool]:
        """Return who is concerned, who of them is to be asked, and whether those who rest are, too."""
        now = self._runtime.now()
        those = self.nodes if only is None else list(only)
        awake = those if rested else [node for node in those if not node.rests(now) or node.catches_up(now)]
        if only is None and len(awake) < self.majority:
            awake, rested = those, True
        poll.waiting.update(node.index for node in awake)
        if len(awake) < len(those):
            poll.failures.update((node.index, node.why(now)) for node in those if node not in awake)
        return those, awake, rested

    def _post(self, node: Node, question: Question[T], poll: Poll[T], packed: Packed) -> bool:
        """Send a question from here; return whether that could be done at once."""
        if not node.posts:
            return False
        posted = Posted(self, node, question, poll)
        return node.post(packed.of(question.command(node)), self._runtime.now(), question.until, posted, poll.taken)

    def ask_again(self, node: Node, question: Question[Any], poll: Poll[Any]) -> None:
        """Put a question again that a node has refused, in the way that knows what to do about each error."""
        self._ask_beside(node, question, poll, None)

    def _ask_beside(
        self, node: Node, question: Question[T], poll: Poll[T], skip: Callable[[Node], None] | None
    ) -> None:
        async def work(node: Node) -> T:
            try:
                left = max(question.until - self._runtime.now(), 0.001)
                return question.read(node, await node.run(question.command(node), left))
            except (StoreUnavailable, Unsupported):
                question.lost(node)
                raise

        poll.elsewhere = True
        self._beside(node, partial(self._one, node, work, poll, question.until, skip))

    def _connect(self, node: Node) -> None:
        """Let a further connection be made, for the next who asks."""
        if self._workers:
            self._workers[node.index].do(partial(node.connect, CONNECT_WITHIN))

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
        await self._late.close(CLOSE_WITHIN)
        for worker in self._workers:
            await worker.close(CLOSE_WITHIN)
        self._jobs.clear()

    def after_fork(self, channel: bytes) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        self._jobs = {}
        self.closed = False
        self._late.after_fork()
        for worker in self._workers:
            worker.after_fork()
        for node in self.nodes:
            node.after_fork(channel)


def _nothing(node: Node) -> None:
    pass

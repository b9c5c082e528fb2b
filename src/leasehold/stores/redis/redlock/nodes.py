"""The nodes of a Redlock seen from one client: asked all at once, and nobody waits for the slow.

Theory of operation
-------------------
Whoever asks sends its question to every node itself, one after the other and without waiting (`connection.pipelining`),
then reads what comes until that is enough, and goes on. No other thread or task has a part in it. What each can see:

* A node sees its own question alone, on a connection where others may have gone before. It may carry it out after the
  asker went on, and after later questions that came on other connections. So each question is one that may be repeated
  and may come late: a claim that comes after its ticket's leave finds a higher token, and gets no vote.
* The asker sees a majority, and of the others nothing. Their answers are read by whoever uses the connection next, or
  within `background.TICK`. They end the node's debt, and where one is a refusal, as of a script that the node does
  not know, the question is put again beside.
* Where no connection is to be had, the question goes by the thread of that node, or by a task (`BackgroundCalls`); so
  does all
  that is not urgent. That thread makes the connection of which there was too few. Whoever asks waits for a majority of
  all, so a thread that cannot connect holds up nobody.
* If the asker is interrupted in the middle, its half written connections are closed, and whatever they owed is told as
  lost: then a leave is owed to the node. If it dies, the nodes know a ticket that nobody renews.

A node that gave no answer rests for a while, longer each time, and one that owes an answer for longer than `STUCK` is
passed over. Neither holds up anybody, and neither is connected to at each call. If the others are too few, or do not
suffice, all are asked all the same (`QuorumCall.until`): nothing is lost by that, and a node may be blamed wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.redlock.background import BackgroundCalls, LateReplies
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.protocol import majority
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall
from leasehold.stores.redis.scripts.commands import Command

T = TypeVar("T")

CLOSE_WITHIN = 0.5
"""Seconds that closing waits for questions that are still out, each."""

CONNECT_WITHIN = 2.0
"""Seconds that connecting may take for those who come later."""


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


class SentQuestion(Generic[T]):
    """A question that was sent to one node. Called by whoever reads the answer; see `Answered`."""

    __slots__ = ("_call", "_node", "_question", "_quorum")

    def __init__(self, quorum: QuorumNodes, node: Node, question: Question[T], call: QuorumCall[T]) -> None:
        self._quorum = quorum
        self._node = node
        self._question = question
        self._call = call

    def __call__(self, reply: Any, failure: StoreUnavailable | None) -> None:
        node, question = self._node, self._question
        if failure is not None:
            node.end_request(self, failure)
        else:
            node.note_reply(self, self._quorum.now())
            if isinstance(reply, ReplyError):
                self._quorum.ask_again(node, question, self._call)
                return
        self._call.settle(node.index, *question.take(node, failure or reply))


class QuorumNodes:
    """All nodes."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self.now = runtime.now
        self.nodes = nodes
        self.majority = majority(len(nodes))
        self._background = BackgroundCalls(runtime, nodes)
        self._late_replies = LateReplies(runtime, nodes)
        self.closed = False

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def where(self) -> str:
        """All of them, for messages to people."""
        return ", ".join(node.where for node in self.nodes)

    def ask(self, question: Question[T], *, only: Iterable[Node] | None = None) -> QuorumCall[T]:
        """Ask all nodes, or those in ``only``, if they do not rest. Whoever asks leaves the poll in the end."""
        call: QuorumCall[T] = QuorumCall(self._runtime, self._late_replies.notify)
        try:
            those = self.nodes if only is None else list(only)
            packed = Packed()
            for node in self._pick(
                call, those, question.skipped, lambda node: self._background.ask(node, question, call, None)
            ):
                if not self._post(node, question, call, packed):
                    self._background.ask(node, question, call, question.skipped)
                    self._connect(node)
        except BaseException:
            call.stop_waiting()
            raise
        return call

    def ask_in_background(
        self,
        work: Callable[[Node], Coroutine[Any, Any, T]],
        *,
        only: Iterable[Node] | None = None,
        even_skipped: bool = False,
    ) -> QuorumCall[T]:
        """Let other threads, or tasks, ask all nodes, or those in ``only``, that do not rest (``even_skipped``: even so)."""
        call: QuorumCall[T] = QuorumCall(self._runtime, self._late_replies.notify)
        those = self.nodes if only is None else list(only)
        asked = self._pick(
            call,
            those,
            _do_nothing,
            lambda node: self._background.run(node, work, call, None),
            even_skipped=even_skipped,
        )
        for node in asked:
            self._background.run(node, work, call, None if even_skipped else _do_nothing)
        return call

    def _pick(
        self,
        call: QuorumCall[Any],
        those: Sequence[Node],
        skipped: Callable[[Node], None],
        ask_skipped: Callable[[Node], None],
        *,
        even_skipped: bool = False,
    ) -> Sequence[Node]:
        """Return whom to ask now. Who rests is passed over, unless too few are left for a majority of all."""
        now = self._runtime.now()
        awake = those if even_skipped else [node for node in those if not node.is_skipped(now) or node.catch_up(now)]
        if those is self.nodes and len(awake) < self.majority:
            awake = those
        call.begin(awake, ask_skipped)
        if len(awake) < len(those):
            for node in those:
                if node not in awake:
                    call.skip(node, node.why_skipped(now), skipped)
        return awake

    def _post(self, node: Node, question: Question[T], call: QuorumCall[T], packed: Packed) -> bool:
        """Send a question from here; return whether that could be done at once."""
        if not node.can_send:
            return False
        posted = SentQuestion(self, node, question, call)
        return node.post(packed.of(question.command(node)), self._runtime.now(), question.until, posted, call.taken)

    def ask_again(self, node: Node, question: Question[Any], call: QuorumCall[Any]) -> None:
        """Put a question again that a node has refused, in the way that knows what to do about each error."""
        self._background.ask(node, question, call, None)

    def _connect(self, node: Node) -> None:
        """Let a further connection be made, for the next who asks."""
        if self._background.threads:
            self._background.do(node, partial(node.connect, CONNECT_WITHIN))

    def too_few(
        self, call: QuorumCall[Any], answers: Mapping[int, Any], what: str, others: Mapping[int, str]
    ) -> StoreUnavailable:
        """Make the error that says how many of how many nodes answered, and what is the matter with each other.

        ``others``: what is the matter with nodes that did answer.
        """
        why = {node.index: "no answer in time" for node in self.nodes if node.index not in answers}
        why |= {index: str(error) for index, error in call.failures.items() if index in why}
        why |= others
        silent = [f"{self.nodes[index].where}: {reason}" for index, reason in sorted(why.items())]
        count = len(self.nodes) - len(silent)
        text = f"too few nodes {what}: {count} of {len(self.nodes)}, and it takes {self.majority}"
        return StoreUnavailable("; ".join([text, *silent]), unknown=call.unknown() or len(answers) > 0)

    async def close(self) -> None:
        """End all connections, and wait a moment for questions that are still out."""
        self.closed = True
        for node in self.nodes:
            await node.close()
        await self._late_replies.close(CLOSE_WITHIN)
        await self._background.close(CLOSE_WITHIN)

    def after_fork(self, channel: bytes) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        self.closed = False
        self._late_replies.after_fork()
        self._background.after_fork()
        for node in self.nodes:
            node.after_fork(channel)


def _do_nothing(node: Node) -> None:
    pass


def refuse_duplicates(nodes: Sequence[Node]) -> None:
    """Raise if one server is there twice: it would count as two votes."""
    seen: dict[str, Node] = {}
    for node in nodes:
        if node.identity:
            other = seen.setdefault(node.identity, node)
            if other is not node:
                raise Unsupported(
                    f"{other.where} and {node.where} are the same server; each node of Redlock must be one of its own, "
                    "or one failure takes away two votes: name it once"
                )

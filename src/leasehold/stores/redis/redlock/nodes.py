"""The nodes of a Redlock seen from one client: asked in parallel, without waiting for the slow ones.

Theory of operation
-------------------
The caller sends its question to each node itself, one after the other and without waiting (`connection.pipelining`).
Then it reads answers until they are enough. No other thread or task takes part. Each side has a limited view:

* A node sees its own question alone, on a connection that may have carried others before. It may execute the question
  after the caller went on, and after later questions on other connections. So each question may be repeated and may
  arrive late: a request for a vote after the ticket's release finds a higher token, and gets no vote.
* The caller sees the answers of a majority, and nothing of the others. The next caller on that connection reads those,
  or the background does, within `background.TICK`. A late answer closes the open request of its node. If it is an
  error, as for a script that the node does not know, the question is asked again in the background.
* Without a free connection the question goes to the thread of that node, or to a task (`BackgroundCalls`). So does
  everything that is not urgent. That thread then opens the missing connection. A caller waits for a majority of all
  nodes, so a thread that cannot connect delays nobody.
* An interrupt in the middle closes the caller's half-written connections. Their open requests fail, so a release
  becomes pending for the node. If the caller dies, the nodes know a ticket that nobody renews.

A node that gave no answer is skipped for a while, longer each time. A node with an open request older than `STUCK` is
skipped, too. Neither delays a caller, and neither is connected to at each call. If the other nodes are too few, or not
enough, all are asked after all (`QuorumCall.until`): that costs nothing, and a node may be skipped wrongly.
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
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall, do_nothing
from leasehold.stores.redis.scripts.commands import Command

T = TypeVar("T")

CLOSE_WITHIN = 0.5
"""Seconds that closing waits for each open question."""

CONNECT_WITHIN = 2.0
"""Seconds that opening a connection for later callers may take."""


class Packed:
    """Packs a command once for all nodes that get the same one."""

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
    """A question that was sent to one node. The reader of the answer calls it; see `OnReply`."""

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
    """All nodes of one client. Thread-safe."""

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
        """The addresses of all nodes, for messages to people."""
        return ", ".join(node.where for node in self.nodes)

    def ask(self, question: Question[T], *, only: Iterable[Node] | None = None) -> QuorumCall[T]:
        """Ask all nodes, or those in ``only``, that are not skipped. The caller ends the call with `stop_waiting`."""
        call: QuorumCall[T] = QuorumCall(self._runtime, self._late_replies.notify)
        try:
            those = self.nodes if only is None else list(only)
            packed = Packed()
            for node in self._pick(
                call, those, question.on_skipped, lambda node: self._background.ask(node, question, call, None)
            ):
                if not self._post(node, question, call, packed):
                    self._background.ask(node, question, call, question.on_skipped)
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
        """Let other threads, or tasks, ask all nodes, or those in ``only``; skipped ones only with ``even_skipped``."""
        call: QuorumCall[T] = QuorumCall(self._runtime, self._late_replies.notify)
        those = self.nodes if only is None else list(only)
        asked = self._pick(
            call,
            those,
            do_nothing,
            lambda node: self._background.run(node, work, call, None),
            even_skipped=even_skipped,
        )
        for node in asked:
            self._background.run(node, work, call, None if even_skipped else do_nothing)
        return call

    def _pick(
        self,
        call: QuorumCall[Any],
        those: Sequence[Node],
        on_skipped: Callable[[Node], None],
        ask_skipped: Callable[[Node], None],
        *,
        even_skipped: bool = False,
    ) -> Sequence[Node]:
        """Return the nodes to ask now, without skipped ones, unless too few are left for a majority of all."""
        now = self._runtime.now()
        awake = those if even_skipped else [node for node in those if not node.is_skipped(now) or node.catch_up(now)]
        if those is self.nodes and len(awake) < self.majority:
            awake = those
        call.begin(awake, ask_skipped)
        if len(awake) < len(those):
            for node in those:
                if node not in awake:
                    call.skip(node, node.why_skipped(now), on_skipped)
        return awake

    def _post(self, node: Node, question: Question[T], call: QuorumCall[T], packed: Packed) -> bool:
        """Send a question without waiting; return whether that was possible."""
        if not node.can_send:
            return False
        answered = SentQuestion(self, node, question, call)
        return node.post(packed.of(question.command(node)), self._runtime.now(), question.until, answered, call.taken)

    def ask_again(self, node: Node, question: Question[Any], call: QuorumCall[Any]) -> None:
        """Repeat a question that a node answered with an error, by the path that handles each error."""
        self._background.ask(node, question, call, None)

    def _connect(self, node: Node) -> None:
        """Open one more connection in the background, for the next caller."""
        if self._background.threads:
            self._background.do(node, partial(node.connect, CONNECT_WITHIN))

    def too_few(
        self, call: QuorumCall[Any], answers: Mapping[int, Any], what: str, others: Mapping[int, str]
    ) -> StoreUnavailable:
        """Return the error that reports how many nodes answered, and for each other node why it did not.

        ``others``: the reasons of nodes that answered, but do not count.
        """
        why = {node.index: "no answer in time" for node in self.nodes if node.index not in answers}
        why |= {index: str(error) for index, error in call.failures.items() if index in why}
        why |= others
        silent = [f"{self.nodes[index].where}: {reason}" for index, reason in sorted(why.items())]
        count = len(self.nodes) - len(silent)
        text = f"too few nodes {what}: {count} of {len(self.nodes)}, and it takes {self.majority}"
        return StoreUnavailable("; ".join([text, *silent]), unknown=call.unknown() or len(answers) > 0)

    async def close(self) -> None:
        """Close all connections, and wait a moment for open questions."""
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


def refuse_duplicates(nodes: Sequence[Node]) -> None:
    """Raise `Unsupported` if two nodes are the same server, which would have two votes."""
    seen: dict[str, Node] = {}
    for node in nodes:
        if node.identity:
            other = seen.setdefault(node.identity, node)
            if other is not node:
                raise Unsupported(
                    f"{other.where} and {node.where} are the same server; name it once: each node of Redlock must be "
                    "a server of its own, or one failure takes away two votes"
                )

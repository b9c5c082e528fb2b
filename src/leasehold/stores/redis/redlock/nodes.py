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
* Without a free connection the question goes to the background, as does everything that is not urgent. There the
  missing connection is opened, too: a caller waits for a majority of all nodes, so that delays no caller.
* An interrupt in the middle closes the caller's half-written connections. Their open requests fail, so a release
  becomes pending for the node. If the caller dies, the nodes know a ticket that is not renewed.

A node that gave no answer is skipped for a while, longer each time. A node with an open request older than `STUCK` is
skipped, too. Neither delays a caller, and neither is connected to at each call. If the other nodes are too few, or not
enough, all are asked after all (`QuorumCall.until`): that costs nothing, and a node may have been skipped wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.redlock.background import BackgroundCalls, LateReplies, NodeWork
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.protocol import majority
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall, SentQuestion, do_nothing
from leasehold.stores.redis.scripts.commands import Command

T = TypeVar("T")

CLOSE_WITHIN = 0.5
"""Seconds that closing waits for each open question."""

CONNECT_WITHIN = 2.0
"""Seconds that opening a connection for later callers may take."""


class QuorumNodes:
    """All nodes of one client. Thread-safe."""

    def __init__(self, runtime: Runtime, nodes: Sequence[Node]) -> None:
        self._runtime = runtime
        self.nodes = nodes
        self.majority = majority(len(nodes))
        self._background = BackgroundCalls(runtime, nodes)
        self._late_replies = LateReplies(runtime, nodes)
        self.closed = False

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def where(self) -> str:
        return ", ".join(node.where for node in self.nodes)

    def ask(self, question: Question[T], *, only: Sequence[Node] | None = None) -> QuorumCall[T]:
        """Ask all nodes, or those in ``only``, that are not skipped. The caller ends the call with `stop_waiting`."""
        call: QuorumCall[T] = QuorumCall(
            self._runtime,
            self._late_replies.notify,
            question.on_skipped,
            partial(self._background.ask, question, even_skipped=True),
        )
        command: Command | None = None
        packed = b""
        try:
            for node in self._pick(call, only):
                if node.can_send:
                    asked = question.command(node)
                    if asked is not command:  # packed once for all nodes that get the same
                        script, keys, args = command = asked
                        packed = script.by_digest(keys, args)
                    sent = SentQuestion(node, question, call)
                    if node.post(packed, self._runtime.now(), question.until, sent, call.taken):
                        continue
                self._background.ask(question, node, call)
                if self._background.threads:  # open one more connection, for the next caller
                    self._background.do(node, partial(node.connect, CONNECT_WITHIN))
        except BaseException:
            call.stop_waiting()
            raise
        return call

    def ask_in_background(self, work: NodeWork[T], *, even_skipped: bool = False) -> QuorumCall[T]:
        """Let other threads, or tasks, ask all nodes; skipped ones only with ``even_skipped``."""
        run = self._background.run
        call: QuorumCall[T] = QuorumCall(
            self._runtime, self._late_replies.notify, do_nothing, partial(run, work, even_skipped=True)
        )
        for node in self._pick(call, None, even_skipped=even_skipped):
            run(work, node, call, even_skipped=even_skipped)
        return call

    def _pick(
        self, call: QuorumCall[Any], only: Sequence[Node] | None, *, even_skipped: bool = False
    ) -> Sequence[Node]:
        """Return the nodes to ask now, without skipped ones, unless too few are left for a majority of all."""
        now, those = self._runtime.now(), self.nodes if only is None else only
        awake = those if even_skipped else [node for node in those if not node.is_skipped(now) or node.catch_up(now)]
        if only is None and len(awake) < self.majority:
            awake = those
        call.waiting.update(node.index for node in awake)
        if len(awake) < len(those):
            for node in those:
                if node not in awake:
                    call.skip(node, node.why_skipped(now))
        return awake

    def too_few(
        self,
        call: QuorumCall[Any],
        answers: Mapping[int, Any],
        what: str,
        others: Mapping[int, str] | None = None,
        *,
        unknown: bool = False,
    ) -> StoreUnavailable:
        """Return the error that reports how many nodes answered, and for each other node why it did not.

        ``others``: the reasons of nodes that answered, but do not count. ``unknown``: earlier questions of the same
        request may have been carried out, whatever became of this one.
        """
        why = {node.index: "no answer in time" for node in self.nodes if node.index not in answers}
        why |= {index: str(error) for index, error in call.failures.items() if index in why}
        why |= others or {}
        silent = [f"{self.nodes[index].where}: {reason}" for index, reason in sorted(why.items())]
        count = len(self.nodes) - len(silent)
        text = f"too few nodes {what}: {count} of {len(self.nodes)}, and it takes {self.majority}"
        return StoreUnavailable("; ".join([text, *silent]), unknown=unknown or call.unknown() or len(answers) > 0)

    async def close(self) -> None:
        self.closed = True
        for node in self.nodes:
            await node.close()
        self._late_replies.job.stop()
        await self._late_replies.job.join(CLOSE_WITHIN)
        await self._background.close(CLOSE_WITHIN)

    def after_fork(self, channel: bytes) -> None:
        self.closed = False
        self._late_replies.after_fork()
        self._background.after_fork()
        for node in self.nodes:
            node.after_fork(channel)


def nodes_of_same_server(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return nodes that are one and the same server, which would have several votes; none if all differ."""
    for node in nodes:
        same = [other for other in nodes if node.identity and other.identity == node.identity]
        if len(same) > 1:
            return same
    return ()

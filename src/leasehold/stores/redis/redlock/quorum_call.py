"""One question to the nodes of a Redlock, and the answers as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.connection.connection import WakeUp
from leasehold.stores.redis.connection.pipelining import PipelinedConnection, wait_for_replies
from leasehold.stores.redis.redlock.node import STUCK, Node
from leasehold.stores.redis.scripts.commands import Command

T = TypeVar("T")


def do_nothing(node: Node) -> None:
    """Do nothing: the default of the callbacks."""


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A request for each node. It is idempotent.

    Attributes:
        command: makes the command; the same object for nodes that get the same.
        read: reads the reply.
        until: boot-time clock after which it is not sent any more, and no answer is waited for.
        on_lost: called for each node that gave no answer, or an error.
        on_skipped: called for each node that is not asked.
    """

    command: Callable[[Node], Command]
    read: Callable[[Node, Any], T]
    until: float
    on_lost: Callable[[Node], None] = do_nothing
    on_skipped: Callable[[Node], None] = do_nothing

    def take(self, node: Node, reply: Any) -> tuple[T | None, LeaseholdError | None]:
        """Read a reply, or the error in its place; return the answer, or the reason why there is none."""
        failure = reply if isinstance(reply, LeaseholdError) else None
        if failure is None:
            try:
                return self.read(node, reply), None
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                failure = StoreUnavailable(f"the reply of {node.where} cannot be read: {error}", unknown=True)
        self.on_lost(node)
        return None, failure


class QuorumCall(Generic[T]):
    """The answers to one question, as they arrive. Thread-safe.

    A blocking caller reads them itself, from connections that it owns until it stops waiting. An answer that another
    thread reads wakes it. Nodes that seem not to answer are skipped, and asked after all if the others are not enough:
    a thread that got no CPU time for a while takes nodes for stuck whose answers it has not read yet.
    """

    def __init__(
        self,
        runtime: Runtime,
        on_open_replies: Callable[[], None],
        on_skipped: Callable[[Node], None],
        ask_after_all: Callable[[Node, QuorumCall[T]], None],
    ) -> None:
        """Make the call.

        Args:
            runtime: of the caller.
            on_open_replies: called when answers are left for others to read.
            on_skipped: called for each node that is never asked.
            ask_after_all: asks a skipped node, or once more a node that answered with an error.
        """
        self._runtime = runtime
        self._on_open_replies = on_open_replies
        self._on_skipped = on_skipped
        self.ask_after_all = ask_after_all
        self._mutex = runtime.mutex()
        self._signal: Signal | None = None
        self._wake_up: WakeUp | None = None
        self._enough: Callable[[QuorumCall[T]], bool] | None = None
        self._done = False
        self.taken: list[PipelinedConnection] = []
        self.in_background = False  # whether another thread, or a task, asks some nodes
        self.answers: dict[int, T] = {}
        self.failures: dict[int, LeaseholdError] = {}
        self.waiting: set[int] = set()
        self._skipped: list[Node] = []
        self._stopped = False

    def skip(self, node: Node, why: LeaseholdError) -> None:
        """Record that a node was not asked."""
        with self._mutex:
            stopped = self._stopped
            if not stopped:
                self._skipped.append(node)
        if stopped:
            self._on_skipped(node)
        self.settle(node.index, None, why)

    def __enter__(self) -> QuorumCall[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Stop waiting. Later answers are read by others."""
        with self._mutex:
            self._stopped = True
            skipped_nodes, self._skipped = self._skipped, []
        for node in skipped_nodes:
            self._on_skipped(node)
        replies_open = False
        while self.taken:
            pipelined = self.taken[-1]
            pipelined.give_back()
            replies_open = replies_open or bool(pipelined.pending)
            self.taken.pop()
        if replies_open:
            self._on_open_replies()

    def settle(self, node: int, answer: T | None, failure: LeaseholdError | None) -> None:
        """Record the answer of a node, or why there is none."""
        with self._mutex:
            self.waiting.discard(node)
            if failure is not None:
                self.failures[node] = failure
            elif answer is not None:
                self.answers = {**self.answers, node: answer}
            if self._enough is not None and (not self.waiting or self._enough(self)):
                self._done = True
                if self._signal is not None:
                    self._signal.set()
                if self._wake_up is not None:
                    self._wake_up.set()

    async def until(self, enough: Callable[[QuorumCall[T]], bool], until: float) -> Mapping[int, T]:
        """Wait until ``enough``, all have answered, or the time is over; return the answers so far.

        Asks the skipped nodes, too, when all others have answered, or did not for `node.STUCK` seconds.
        """
        while True:
            answers = await self.linger(enough, min(until, self._runtime.now() + STUCK))
            if enough(self) or self._runtime.now() >= until:
                return answers
            with self._mutex:
                skipped_nodes, self._skipped = self._skipped, []
                for node in skipped_nodes:
                    self.failures.pop(node.index, None)
                    self.waiting.add(node.index)
            for node in skipped_nodes:
                self.ask_after_all(node, self)
            if not skipped_nodes and not self.waiting:
                return answers

    async def linger(self, enough: Callable[[QuorumCall[T]], bool], until: float) -> Mapping[int, T]:
        """Wait as `until` does, but do not ask skipped nodes."""
        signal = self._signal
        if not self.taken and signal is None:
            signal = self._signal = self._runtime.signal()
        with self._mutex:
            self._enough = enough
            self._done = done = not self.waiting or enough(self)
            if signal is not None:
                signal.clear()
        if not done and self.taken:
            self._read(until)
        elif not done and signal is not None:
            await signal.wait(max(until - self._runtime.now(), 0.0))
        with self._mutex:
            self._enough = None
            return self.answers

    def _read(self, until: float) -> None:
        """Read answers in this thread until they are enough."""
        wake_up: WakeUp | None = None
        try:
            left = 1.0
            while not self._done and left > 0:
                left = max(until - self._runtime.now(), 0.0)  # at 0 it still reads what is there
                if self.in_background and wake_up is None:
                    wake_up = WakeUp()
                    with self._mutex:
                        self._wake_up = wake_up
                    continue  # it may have been enough just before
                wait_for_replies(self.taken, wake_up, left)
        finally:
            if wake_up is not None:
                with self._mutex:
                    self._wake_up = None
                wake_up.close()

    def unknown(self) -> bool:
        """Return whether a node may have executed the request without answering."""
        lost = (isinstance(error, StoreUnavailable) and error.unknown for error in self.failures.values())
        return bool(self.waiting) or any(lost)


@dataclass(slots=True, eq=False)
class SentQuestion(Generic[T]):
    """A question that was sent to one node. The reader of the answer calls it; see `OnReply`."""

    node: Node
    question: Question[T]
    call: QuorumCall[T]

    def __call__(self, reply: Any, failure: StoreUnavailable | None) -> None:
        self.node.end_request(self, failure)
        if isinstance(reply, ReplyError):
            self.call.ask_after_all(self.node, self.call)
        else:
            self.call.settle(self.node.index, *self.question.take(self.node, failure or reply))

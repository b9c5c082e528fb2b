"""One question to the nodes of a Redlock, and the answers as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores.redis.connection.pipelining import PipelinedConnection
from leasehold.stores.redis.connection.polling import WakeUp, wait_for_replies
from leasehold.stores.redis.redlock.node import STUCK, Node
from leasehold.stores.redis.scripts.commands import Command

T = TypeVar("T")


def _do_nothing(node: Node) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What is asked of each node. Asked twice it does the same as once.

    Attributes:
        command: makes what is sent; the same object for nodes that get the same.
        read: reads the reply.
        until: boot-time clock: what has not been sent by then never is, and no answer is waited for any more.
        lost: told of nodes that gave no answer, or a refusal.
        skipped: told of nodes that are not asked.

    """

    command: Callable[[Node], Command]
    read: Callable[[Node, Any], T]
    until: float
    lost: Callable[[Node], None] = _do_nothing
    skipped: Callable[[Node], None] = _do_nothing

    def take(self, node: Node, reply: Any) -> tuple[T | None, LeaseholdError | None]:
        """Read a reply, or the error that came in its place; return the answer, or why there is none."""
        failure = reply if isinstance(reply, LeaseholdError) else None
        if failure is None:
            try:
                return self.read(node, reply), None
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                failure = StoreUnavailable(f"what {node.where} answered cannot be read: {error}", unknown=True)
        self.lost(node)
        return None, failure


class QuorumCall(Generic[T]):
    """The answers to one question, as they come. Used from many threads at once.

    A blocking asker reads them itself, from connections that are its own until it leaves; what was asked by another thread
    rings its bell. Nodes that seem not to answer are skipped_nodes over, and are asked after all if the others do not suffice:
    a thread that was given no turn for a while takes many a node for stuck whose answer it has just not read.
    """

    def __init__(self, runtime: Runtime, on_open_replies: Callable[[], None]) -> None:
        self._runtime = runtime
        self._on_open_replies = on_open_replies
        self._mutex = runtime.mutex()
        self._signal: Signal | None = None
        self._wake_up: WakeUp | None = None
        self._enough: Callable[[QuorumCall[T]], bool] | None = None
        self._done = False
        self.taken: list[PipelinedConnection] = []
        self.in_background = False  # whether another thread, or a task, asks some of them
        self.answers: dict[int, T] = {}
        self.failures: dict[int, LeaseholdError] = {}
        self.waiting: set[int] = set()
        self._skipped: list[tuple[Node, Callable[[Node], None]]] = []
        self._stopped = False
        self._ask_skipped: Callable[[Node], None] = _do_nothing

    def begin(self, nodes: Iterable[Node], ask_skipped: Callable[[Node], None]) -> None:
        """Wait for these; those that are skipped_nodes over are asked by the function, if need be."""
        self.waiting.update(node.index for node in nodes)
        self._ask_skipped = ask_skipped

    def skip(self, node: Node, why: LeaseholdError, skipped: Callable[[Node], None]) -> None:
        """Take note that a node was not asked; ``skipped`` is told if it is not asked after all, either."""
        with self._mutex:
            stopped = self._stopped
            if not stopped:
                self._skipped.append((node, skipped))
        if stopped:
            skipped(node)
        self.settle(node.index, None, why)

    def __enter__(self) -> QuorumCall[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Wait for nothing more; what is answered later is read by others."""
        with self._mutex:
            self._stopped = True
            skipped_nodes, self._skipped = self._skipped, []
        for node, skipped in skipped_nodes:
            skipped(node)
        replies_open = False
        while self.taken:
            pipelined = self.taken[-1]
            pipelined.give_back()
            replies_open = replies_open or bool(pipelined.pending)
            self.taken.pop()
        if replies_open:
            self._on_open_replies()

    def settle(self, node: int, answer: T | None, failure: LeaseholdError | None) -> None:
        """Take what a node answered."""
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
        """Wait until it is enough, all have answered, or the time is over; return the answers so far.

        Who was skipped_nodes over is asked, too, when the others have all answered, or were given `node.STUCK`.
        """
        while True:
            answers = await self.linger(enough, min(until, self._runtime.now() + STUCK))
            if enough(self) or self._runtime.now() >= until:
                return answers
            skipped_nodes = self._take_skipped()
            for node in skipped_nodes:
                self._ask_skipped(node)
            if not skipped_nodes and not self.waiting:
                return answers

    async def linger(self, enough: Callable[[QuorumCall[T]], bool], until: float) -> Mapping[int, T]:
        """Do as `until` does, but ask nobody more."""
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

    def _take_skipped(self) -> Sequence[Node]:
        with self._mutex:
            skipped_nodes = [node for node, _ in self._skipped]
            self._skipped = []
            for node in skipped_nodes:
                self.failures.pop(node.index, None)
                self.waiting.add(node.index)
        return skipped_nodes

    def _read(self, until: float) -> None:
        """Read answers in this thread, until it is enough."""
        wake_up: WakeUp | None = None
        try:
            left = 1.0
            while not self._done and left > 0:
                left = max(until - self._runtime.now(), 0.0)  # what is there when the time is over is read all the same
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
        """Say whether a node may have done what it did not answer."""
        lost = (isinstance(error, StoreUnavailable) and error.unknown for error in self.failures.values())
        return bool(self.waiting) or any(lost)

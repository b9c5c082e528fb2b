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


def _nothing(node: Node) -> None:
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
    lost: Callable[[Node], None] = _nothing
    skipped: Callable[[Node], None] = _nothing

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

    A blocking asker reads them itself, from pipes that are its own until it leaves; what was asked by another thread
    rings its bell. Nodes that seem not to answer are passed over, and are asked after all if the others do not suffice:
    a thread that was given no turn for a while takes many a node for stuck whose answer it has just not read.
    """

    def __init__(self, runtime: Runtime, left: Callable[[], None]) -> None:
        self._runtime = runtime
        self._left = left
        self._mutex = runtime.mutex()
        self._signal: Signal | None = None
        self._wake_up: WakeUp | None = None
        self._enough: Callable[[QuorumCall[T]], bool] | None = None
        self._done = False
        self.taken: list[PipelinedConnection] = []
        self.elsewhere = False  # whether another thread, or a task, asks some of them
        self.answers: dict[int, T] = {}
        self.failures: dict[int, LeaseholdError] = {}
        self.waiting: set[int] = set()
        self._passed: list[tuple[Node, Callable[[Node], None]]] = []
        self._over = False
        self._ask_after_all: Callable[[Node], None] = _nothing

    def begin(self, nodes: Iterable[Node], ask_after_all: Callable[[Node], None]) -> None:
        """Wait for these; those that are passed over are asked by the function, if need be."""
        self.waiting.update(node.index for node in nodes)
        self._ask_after_all = ask_after_all

    def pass_over(self, node: Node, why: LeaseholdError, skipped: Callable[[Node], None]) -> None:
        """Take note that a node was not asked; ``skipped`` is told if it is not asked after all, either."""
        with self._mutex:
            over = self._over
            if not over:
                self._passed.append((node, skipped))
        if over:
            skipped(node)
        self.settle(node.index, None, why)

    def __enter__(self) -> QuorumCall[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Wait for nothing more; what is answered later is read by others."""
        with self._mutex:
            self._over = True
            passed, self._passed = self._passed, []
        for node, skipped in passed:
            skipped(node)
        owing = False
        while self.taken:
            pipelined = self.taken[-1]
            pipelined.give_back()
            owing = owing or bool(pipelined.owed)
            self.taken.pop()
        if owing:
            self._left()

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

        Who was passed over is asked, too, when the others have all answered, or were given `node.STUCK`.
        """
        while True:
            answers = await self.linger(enough, min(until, self._runtime.now() + STUCK))
            if enough(self) or self._runtime.now() >= until:
                return answers
            passed = self._take_passed()
            for node in passed:
                self._ask_after_all(node)
            if not passed and not self.waiting:
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

    def _take_passed(self) -> Sequence[Node]:
        with self._mutex:
            passed = [node for node, _ in self._passed]
            self._passed = []
            for node in passed:
                self.failures.pop(node.index, None)
                self.waiting.add(node.index)
        return passed

    def _read(self, until: float) -> None:
        """Read answers in this thread, until it is enough."""
        wake_up: WakeUp | None = None
        try:
            left = 1.0
            while not self._done and left > 0:
                left = max(until - self._runtime.now(), 0.0)  # what is there when the time is over is read all the same
                if self.elsewhere and wake_up is None:
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

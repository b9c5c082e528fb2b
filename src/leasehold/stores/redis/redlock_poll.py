"""One question to the nodes of a Redlock, and the answers as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.runtimes.base import Runtime, Signal
from leasehold.stores.redis.commands import Command
from leasehold.stores.redis.redlock_node import Node
from leasehold.wires.redis.attending import Bell, attend
from leasehold.wires.redis.posting import Pipe

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


class Poll(Generic[T]):
    """The answers to one question, as they come. Used from many threads at once.

    A blocking asker reads them itself, from pipes that are its own until it leaves; what was asked by another thread
    rings its bell.
    """

    def __init__(self, runtime: Runtime, left: Callable[[], None]) -> None:
        self._runtime = runtime
        self._left = left
        self._mutex = runtime.mutex()
        self._signal: Signal | None = None
        self._bell: Bell | None = None
        self._enough: Callable[[Poll[T]], bool] | None = None
        self._done = False
        self.taken: list[Pipe] = []
        self.elsewhere = False  # whether another thread, or a task, asks some of them
        self.answers: dict[int, T] = {}
        self.failures: dict[int, LeaseholdError] = {}
        self.waiting: set[int] = set()

    def __enter__(self) -> Poll[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Wait for nothing more; what is answered later is read by others."""
        if not self.taken:
            return
        owing = False
        while self.taken:
            pipe = self.taken[-1]
            pipe.give_back()
            owing = owing or bool(pipe.owed)
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
                if self._bell is not None:
                    self._bell.ring()

    async def until(self, enough: Callable[[Poll[T]], bool], until: float) -> Mapping[int, T]:
        """Wait until it is enough, all have answered, or the time is over; return the answers so far."""
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
        """Read answers in this thread, until it is enough."""
        bell: Bell | None = None
        try:
            left = 1.0
            while not self._done and left > 0:
                left = max(until - self._runtime.now(), 0.0)  # what is there when the time is over is read all the same
                if self.elsewhere and bell is None:
                    bell = Bell()
                    with self._mutex:
                        self._bell = bell
                    continue  # it may have been enough just before
                attend(self.taken, bell, left)
        finally:
            if bell is not None:
                with self._mutex:
                    self._bell = None
                bell.close()

    def unknown(self) -> bool:
        """Say whether a node may have done what it did not answer."""
        lost = (isinstance(error, StoreUnavailable) and error.unknown for error in self.failures.values())
        return bool(self.waiting) or any(lost)

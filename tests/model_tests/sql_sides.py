"""Both sides of a comparison of SQL servers: the sessions of a real one, and those of its model."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.transport import Statement
from leasehold_lab.runtimes.virtual import Machine, Scheduler
from models.net import Connection

ENDED = "the connection ended"
"""What a session of the model answers whose connection ends."""


class RealLine(Protocol):
    """A connection to a real server."""

    def ask(self, statements: Sequence[Statement]) -> Any:
        """Send a request; return the rows of each statement, or the error."""
        ...

    def abort(self) -> None:
        """Hang up."""
        ...


class Servers(ABC):
    """A kind of server: the real one, and what makes a model of it.

    Attributes:
        dialect: how it spells the statements.
        commit: what ends a transaction.
        rollback: what ends it and undoes all.

    """

    dialect: ClassVar[Dialect]
    commit: ClassVar[Sequence[Statement]]
    rollback: ClassVar[Sequence[Statement]]

    @abstractmethod
    def opening(self, within: float) -> Sequence[Statement]:
        """Return two statements: what begins a transaction that waits for a lock for so long."""

    @abstractmethod
    def alone(self, statement: Statement) -> Statement:
        """Return a statement as it is sent that is a transaction of its own."""

    @abstractmethod
    def real(self) -> RealLine:
        """Connect to the real server."""

    @abstractmethod
    def model(self, scheduler: Scheduler) -> Any:
        """Make a model."""

    @abstractmethod
    def sent(self, statements: Sequence[Statement]) -> Any:
        """Return a request as the model takes it."""

    @abstractmethod
    def error(self, answer: Any) -> str | None:
        """Say an error in words that mean the same on both sides; None if an answer is none."""


@dataclass(eq=False)
class Real:
    """One real session: each request in a thread of its own."""

    line: RealLine
    answers: list[Any] = field(default_factory=list[Any])
    thread: threading.Thread | None = None

    def send(self, statements: Sequence[Statement]) -> None:
        self.thread = threading.Thread(target=lambda: self.answers.append(self.line.ask(statements)), daemon=True)
        self.thread.start()

    def answer(self, within: float) -> Any:
        """Return the answer, or None."""
        assert self.thread is not None
        self.thread.join(within)
        return self.answers[-1] if not self.thread.is_alive() else None


@dataclass(eq=False)
class Modelled:
    """One session of the model."""

    line: Connection | None = None
    answers: list[Any] = field(default_factory=list[Any])

    def connect(self, model: Any, number: int) -> None:
        self.line = model.connect(
            Machine(f"m{number}"), lambda answer, _: self.answers.append(answer), lambda: self.answers.append(ENDED)
        )


@dataclass(eq=False)
class Pair:
    """One session of each, and what our side of it has done.

    Attributes:
        locked: the names that its transaction has locked; None if it is in none.
        waits: whether its last request has no answer yet.
        asks_for: the names that it will have locked then.
        goes_on: whether its request may have to wait for something else after that.

    """

    real: Real
    modelled: Modelled
    locked: list[bytes] | None = None
    waits: bool = False
    goes_on: bool = False
    asks_for: list[bytes] | None = None

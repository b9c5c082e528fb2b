"""The port between lease rows and a database server: transactions, messages, and what an error of the server means."""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar

from leasehold.errors import StoreUnavailable

T = TypeVar("T")

Value = int | str | bytes | None
"""What goes into a statement and comes back in a row."""

Row = tuple[Any, ...]
"""A row: each column an int, str, bytes or None, as the statement's author knows."""


class Statement(NamedTuple):
    """One statement, with placeholders in the server's own way, and what goes into them."""

    text: str
    args: tuple[Value, ...] = ()


class Transaction(Protocol):
    """One transaction on one connection, at READ COMMITTED: each statement sees what was committed before it began.

    That is needed: a statement that waits for a row's lock and reads other rows, too, reads those as they were before
    it waited. So the lock is taken by one statement, and what it protects is read by the next.
    """

    async def ask(self, *statements: Statement) -> list[list[Row]]:
        """Run them in order, in as few round trips as the server allows; return the rows of each."""
        ...

    async def commit(self, *statements: Statement) -> list[list[Row]]:
        """Run them as `ask`, and commit. Nothing can be asked afterwards."""
        ...


class SQLTransport(Protocol):
    """One database, seen from one client. Used by many threads or tasks at once."""

    where: str
    """The server, for messages to people."""

    async def transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], *, within: float, reserved: bool = False
    ) -> T:
        """Run ``work(transaction)`` on a connection that nobody else uses meanwhile, and return its result.

        With ``reserved`` on one that is kept for this: renewals never wait behind users' requests for a connection.

        What ``work`` did not commit is rolled back. If the caller is cancelled or interrupted, then when this raises it
        is already decided whether the commit was sent, so that whatever the caller sends next finds its outcome.

        Raises:
            Refused: the server answered with an error; what it means for the transaction is in it.
            StoreUnavailable: no answer; ``unknown`` if the commit may have been carried out.

        """
        ...

    async def listen(self, within: float) -> int:
        """Make sure that messages are heard; return the number of the subscription, 0 where there are none to be had.

        Another number than before means that messages may have been missed in between.
        """
        ...

    def generation(self) -> int:
        """Return the number of the subscription that stands now, 0 if none does."""
        ...

    @property
    def channel(self) -> str:
        """Where messages for this client are sent to; empty where there are none to be had."""
        ...

    async def close(self) -> None: ...

    def after_fork(self) -> None:
        """Start anew in a forked child: drop what was inherited without a word to the server."""
        ...


OnMessage = Callable[[str], None]
"""Called with each message on the client's channel, from any thread."""

OnDisconnect = Callable[[], None]
"""Called when the subscription broke: whoever waits must ask again."""


class Outcome(enum.Enum):
    """What an error of the server means for the transaction."""

    NOT_APPLIED = "not applied"  # rolled back
    AGAIN = "again"  # rolled back for want of luck (deadlock, serialization): it may be tried anew at once
    UNKNOWN = "unknown"  # in a commit: perhaps carried out
    LASTING = "lasting"  # rolled back, and asking again cannot help until somebody changes something


class Refused(StoreUnavailable):
    """The server answered with an error.

    Attributes:
        code: the server's own: SQLSTATE or error number, as text.
        outcome: what it means for the transaction.

    """

    def __init__(self, message: str, *, code: str = "", outcome: Outcome = Outcome.NOT_APPLIED, **facts: Any) -> None:
        facts.setdefault("unknown", outcome is Outcome.UNKNOWN)
        super().__init__(message, **facts)
        self.code = code
        self.outcome = outcome
        self.lasting = outcome is Outcome.LASTING

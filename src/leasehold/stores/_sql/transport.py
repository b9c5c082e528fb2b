"""The port between lease rows and a database server: transactions, messages, and what an error of the server means."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from leasehold import errors
from leasehold._runtimes.base import Runtime, Signal

T = TypeVar("T")

Value = int | str | bytes | None
"""What goes into a statement and comes back in a row."""

Row = tuple[Any, ...]
"""A row: each column an int, str, bytes or None, as the statement's author knows."""


class Statement(NamedTuple):
    """One statement: text with placeholders, and their values."""

    text: str
    args: tuple[Value, ...] = ()


class Call(NamedTuple):
    """A call of one of our functions on the server (see `_sql.plain`), which is a transaction of its own."""

    function: str
    args: tuple[Value, ...]


class Transaction(Protocol):
    """One transaction on one connection, at READ COMMITTED: each statement sees what was committed before it began.

    A statement that waits for the lock of a row and reads other rows reads those as they were before the wait. So one
    statement takes the lock, and the next one reads what it protects.
    """

    async def ask(self, *statements: Statement) -> list[list[Row]]:
        """Run them in order, in as few round trips as the server allows; return the rows of each."""
        ...

    async def commit(self, *statements: Statement) -> list[list[Row]]:
        """Run them as `ask` does, and commit. The transaction ends here."""
        ...

    async def call(self, call: Call) -> int | None:
        """Call a function instead, and commit; return its answer, 0 if it was refused and changed nothing.

        None if the function is missing, or may not be called.
        """
        ...


class SQLTransport(Protocol):
    """The connections of one client to one database. Used by many threads or tasks at once."""

    where: str
    """The server, for messages to people."""

    async def transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], *, within: float, reserved: bool = False
    ) -> T:
        """Run ``work(transaction)`` on a connection that no other caller uses meanwhile; return its result.

        ``reserved`` takes a connection that is reserved for renewals: they never wait behind users' requests.

        What ``work`` did not commit is rolled back. When this raises because of a cancellation or an interrupt, it is
        already decided whether the commit was sent. So the caller's next request finds the outcome.

        Raises:
            Refused: the server answered with an error; `Refused.outcome` says what that means for the transaction.
            StoreUnavailable: no answer; ``unknown`` if the server may have committed.
        """
        ...

    async def listen(self, within: float) -> int:
        """Subscribe to messages; return the number of the subscription, 0 if the server sends no messages.

        A number other than before means that messages may have been lost in between.
        """
        ...

    def generation(self) -> int:
        """Return the number of the current subscription, 0 without one."""
        ...

    @property
    def channel(self) -> str:
        """The channel of messages for this client; empty if there are no messages."""
        ...

    async def close(self) -> None: ...

    def after_fork(self) -> None:
        """Start anew in a forked child: drop inherited connections without sending anything to the server."""
        ...


OnMessage = Callable[[str], None]
"""Called with each message on the client's channel, from any thread."""

OnDisconnect = Callable[[], None]
"""Called when the subscription ends: all waiters must ask again."""


Outcome = errors.Outcome
"""What an error of the server means for the transaction."""

Refused = errors.StoreRefused
"""The server answered with an error."""


class Permit:
    """A permit of a `Semaphore`, or a place in its queue: whoever has it holds it, and dropping it gives it back."""

    __slots__ = ("__weakref__", "signal")

    signal: Signal


class Semaphore:
    """Permits, first come, first served. Used by many tasks or threads at once.

    A permit is an object that its caller keeps. So an exception of a signal handler between two steps loses none.
    """

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._limit = limit
        self._taken: WeakSet[Permit] = WeakSet()
        self._queue: deque[Permit] = deque()

    @property
    def busy(self) -> bool:
        """Whether all permits are taken."""
        return len(self._taken) >= self._limit

    async def take(self, until: float) -> Permit | None:
        """Wait for a permit, at most until a reading of the clock; None if none was free. `give` returns it."""
        permit = Permit()
        with self._mutex:
            if not self.busy:
                self._taken.add(permit)
                return permit
            permit.signal = self._runtime.signal()
            self._queue.append(permit)
        try:
            await permit.signal.wait(max(until - self._runtime.now(), 0.0))
        except BaseException:
            self.give(permit)  # it may have been granted at the same moment
            raise
        with self._mutex:
            if permit in self._taken:
                return permit
            self._queue.remove(permit)
            return None

    def give(self, permit: Permit) -> None:
        """Return a permit; the longest waiter gets it."""
        with self._mutex:
            self._taken.discard(permit)
            if permit in self._queue:
                self._queue.remove(permit)
            while self._queue and not self.busy:
                first = self._queue.popleft()
                self._taken.add(first)
                first.signal.set()
                del first  # its waiter may be gone: then it is free again

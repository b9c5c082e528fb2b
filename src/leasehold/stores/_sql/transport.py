"""The port between lease rows and a database server: transactions, messages, and what an error of the server means."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import ref

from leasehold import errors
from leasehold._runtimes.base import Runtime, Signal

T = TypeVar("T")
E = TypeVar("E", bound=Hashable)

Value = int | str | bytes | None
"""What goes into a statement and comes back in a row."""

Row = tuple[Any, ...]
"""A row: each column an int, str, bytes or None, as the statement's author knows."""


class Statement(NamedTuple):
    """One statement: text with placeholders, and their values."""

    text: str
    args: tuple[Value, ...] = ()


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

    async def alone(self, statement: Statement) -> int | None:
        """Run one statement that changes one row at most, as a transaction of its own, instead.

        Returns:
            A number above 0 if it changed the row: the one that the statement names, if it does; 0 if it changed
            nothing. None if it changed nothing for a reason that lasts.
        """
        ...


GRACE = 0.5
"""Seconds that a transaction whose task was cancelled may take to end."""


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
    """A caller's permit, or its place in the queue. Dropping the last reference returns it."""

    __slots__ = ("__weakref__",)


class Waiting(NamedTuple):
    """A caller that waits for its permit."""

    permit: ref[Permit]
    signal: Signal


LOOK_AGAIN = 0.5
"""Seconds after which a waiter looks for permits that came back without a `Semaphore.notify`."""


class Semaphore:
    """Permits, first come, first served. Used by many tasks or threads at once.

    A signal handler may raise between any two steps. So the caller's list alone refers to its permit, and the caller
    clears that list as the first step of a ``finally``: one step of the interpreter, which no handler can interrupt.

        mine: list[Permit] = []
        try:
            if await semaphore.take(until, mine):
                ...
        finally:
            mine.clear()
            semaphore.notify()
    """

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self._runtime = runtime
        self._mutex = runtime.recursive_mutex()
        self._limit = limit
        self._taken: list[ref[Permit]] = []
        self._queue: deque[Waiting] = deque()

    async def take(self, until: float, mine: list[Permit]) -> bool:
        """Wait for a permit, at most until a reading of the clock; return whether the one in ``mine`` was granted."""
        mine.append(Permit())  # no variable here refers to it: the frames of an exception may live for long
        with self._mutex:
            self._serve()
            permit = ref(mine[0])
            if len(self._taken) < self._limit:  # so nobody waits
                self._taken.append(permit)
                return True
            waiting = Waiting(permit, self._runtime.signal())
            self._queue = deque(one for one in self._queue if one.permit() is not None)  # without cancelled callers
            self._queue.append(waiting)
        while permit not in self._taken and (left := until - self._runtime.now()) > 0:
            await waiting.signal.wait(min(left, LOOK_AGAIN))
            self.notify()
        with self._mutex:
            if permit in self._taken:
                return True
            self._queue.remove(waiting)
            return False

    def notify(self) -> None:
        """Grant the permits that have come back to the longest waiters."""
        if self._mutex._is_owned():  # by a frame that the collector interrupted, to close a coroutine of a closed loop
            return
        with self._mutex:
            self._serve()

    def _serve(self) -> None:
        self._taken = [permit for permit in self._taken if permit() is not None]
        while self._queue and len(self._taken) < self._limit:
            waiting = self._queue[0]
            if waiting.permit() is not None:  # else an interrupted caller left it behind
                self._taken.append(waiting.permit)
                waiting.signal.set()
            self._queue.popleft()


class Silent(dict[E, float]):
    """When each endpoint took its whole share of a call; 0 if it answered then. Used by many threads or tasks at once.

    Each gets an equal share of the time that is left. One that took all of it is tried last, until it is quick. If only
    such ones are left, the server may be slow: the one that waited longest, or had answered, gets all the time.
    """

    def last(self, endpoints: Iterable[E]) -> list[E]:
        """Return the endpoints in the order in which they are tried."""
        return sorted(endpoints, key=lambda one: (one in self, self.get(one, 0.0)))

    def limit(self, waiting: Sequence[E], now: float, until: float) -> float:
        """Return the time until which the first of these may take."""
        return until if all(one in self for one in waiting) else now + (until - now) / len(waiting)

    def note(self, endpoint: E, share: float, began: float, now: float, *, answered: bool = False) -> None:
        """Remember an endpoint that took its whole share, however that ended; forget any other."""
        if now - began < share * 0.99:  # the clocks of a runtime differ a little
            self.pop(endpoint, None)
            return
        if len(self) >= 100:  # a name may have ever new addresses
            self.clear()
        self[endpoint] = 0.0 if answered else now


def addresses_in(found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the addresses in what a resolver found, in its order; a local one has the number of its interface."""
    return list(dict.fromkeys("%".join(str(part) for part in (info[4][0], *info[4][3:]) if part) for info in found))

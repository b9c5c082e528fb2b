"""One waiter, the queue of those who wait for one name, and what a server's sessions must be able to do."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from leasehold._model import Owner, Ticket
from leasehold._runtimes.base import Signal
from leasehold.errors import StoreUnavailable

S = TypeVar("S")


class Sessions(Protocol[S]):
    """What differs between servers: how a session tries, waits, and gives back. Each is used by one at a time."""

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[S, bool]:
        """Take a session and try the lock of ``name``; return whether the session has it now.

        The server ends the session when it hears nothing of it for the ticket's lease.
        """
        ...

    async def wait(self, session: S, name: str, until: Callable[[], float]) -> None:
        """Wait in the server's queue until the session has the lock, at most until what ``until()`` says by then.

        Raises:
            StoreUnavailable: the session is over, or nobody waits any more; it is closed.

        """
        ...

    async def free(self, session: S, name: str, until: float, *, has: bool) -> None:
        """Give back the session, and the lock if it ``has`` it. If that fails the session is closed."""
        ...

    async def end(self, session: S, name: str, until: float) -> None:
        """Close a session that waits in the server's queue, and tell the server, which might not notice for a while."""
        ...

    def close(self, session: S) -> None:
        """Close a session, whatever it does; a job that waits on it finds out."""
        ...


@dataclass(eq=False, slots=True)
class Waiter(Generic[S]):
    """One ticket in line.

    Attributes:
        last_seen: when its client last asked for it or renewed it.
        session: one that has the lock, until the waiter has taken its token.
        failed: what became of the session that was parked for it.
        answered: whether it was answered once, so that its client will leave for it.
        stored_at: when it was written down for people to see, and who held the name then.

    """

    name: str
    ticket: Ticket
    signal: Signal
    last_seen: float
    session: S | None = None
    failed: StoreUnavailable | None = None
    answered: bool = False
    stored_at: float | None = None
    held_by: Owner | None = None

    @property
    def key(self) -> str:
        """Which line it stands in: that of its name, or if it is fair one of its own."""
        return f"fair {self.ticket.id}" if self.ticket.terms.mode.fair else f"name {self.name}"

    @property
    def stored(self) -> bool:
        """Whether the server may know of it: there is something to take out when it leaves."""
        return self.answered or self.stored_at is not None

    @property
    def deadline(self) -> float:
        """The reading of the clock after which nobody seems to be there."""
        return self.last_seen + self.ticket.terms.lease


class ParkResult(enum.Enum):
    """What became of a session that waited in the server's queue."""

    GRANTED = enum.auto()  # it has the lock, for the first in line
    NOT_WANTED = enum.auto()  # it has the lock, and nobody waits any more
    CLOSED = enum.auto()  # it is closed, or to be closed


@dataclass(eq=False, slots=True)
class WaitQueue(Generic[S]):
    """Those who wait for one name, first come first."""

    key: str
    name: str
    waiters: list[Waiter[S]] = field(default_factory=list[Waiter[S]])
    parked: S | None = None
    asking: bool = False

    def notify(self) -> None:
        """Wake the first: it may be its turn to ask, or it has the lock. One with a session parked for it sleeps on."""
        if self.waiters and self.parked is None:
            self.waiters[0].signal.set()

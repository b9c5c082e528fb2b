"""One waiter, the queue of those who wait for one name, and what a server's sessions must be able to do."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from weakref import ref

from leasehold._model import Owner, Ticket
from leasehold._runtimes.base import Job, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.transport import Permit

S = TypeVar("S")


class WaitingSessions(Protocol[S]):
    """How a server's sessions take, await and release locks. One task or thread uses a session at a time."""

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[S, bool]:
        """Take a session and try to lock ``name``; return the session and whether it has the lock.

        The server ends a session that is silent for the ticket's lease.
        """
        ...

    async def wait(self, session: S, name: str, until: Callable[[], float]) -> None:
        """Wait in the server's queue until the session has the lock. ``until()`` is the deadline, which may move.

        Raises:
            StoreUnavailable: the session ended, or the deadline is over. The session is closed.
        """
        ...

    async def free(self, session: S, name: str, until: float, *, has: bool) -> None:
        """Return the session to the pool, and release the lock if it ``has`` it. A failure closes the session."""
        ...

    async def end(self, session: S, name: str, until: float) -> None:
        """Close a session that waits in the server's queue, and let the server end it: it may notice late."""
        ...

    def close(self, session: S) -> None:
        """Close a session at any moment; a job that waits on it gets an error."""
        ...


@dataclass(eq=False, slots=True)
class Waiter(Generic[S]):
    """One ticket in a local queue.

    Attributes:
        last_seen: when its client last asked for it or renewed it.
        session: one that has the lock, until the waiter has taken its token.
        taking: whether a call takes that token now: the session is that call's alone, whatever happens meanwhile.
        failed: why the session that was parked for it ended.
        answered: whether a call returned to its client, which will therefore release it.
        left: whether it has given up: a row of it that is stored later must be removed.
        stored_at: when its row was written, for people to see.
        held_by: who held the name then.
    """

    name: str
    ticket: Ticket
    signal: Signal
    last_seen: float
    session: S | None = None
    taking: bool = False
    failed: StoreUnavailable | None = None
    answered: bool = False
    left: bool = False
    stored_at: float | None = None
    held_by: Owner | None = None

    @property
    def key(self) -> str:
        """The key of its queue: that of its name, or a queue of its own if it is fair."""
        return f"fair {self.ticket.id}" if self.ticket.terms.mode.fair else f"name {self.name}"

    @property
    def stored(self) -> bool:
        """Whether the server may have a row of it, which must be removed when it leaves."""
        return self.answered or self.stored_at is not None

    @property
    def deadline(self) -> float:
        """When the waiter counts as gone, on the boot-time clock."""
        return self.last_seen + self.ticket.terms.lease


class ParkResult(enum.Enum):
    """How the wait of a parked session ended."""

    GRANTED = enum.auto()  # it has the lock, for the first waiter
    NOT_WANTED = enum.auto()  # it has the lock, and no waiter is left
    CLOSED = enum.auto()  # it is closed, or must be closed


@dataclass(eq=False, slots=True)
class WaitQueue(Generic[S]):
    """The waiters of one client for one name, in order of arrival.

    Attributes:
        parked: the session that waits in the server's queue.
        job: a weak reference to the job that waits with it.
        trier: a weak reference to the permit of the waiter that tries the lock now.
    """

    key: str
    name: str
    waiters: list[Waiter[S]] = field(default_factory=list[Waiter[S]])
    parked: S | None = None
    job: ref[Job] | None = None
    trier: ref[Permit] | None = None

    @property
    def trying(self) -> bool:
        """Whether a waiter tries the lock just now."""
        return self.trier is not None and self.trier() is not None

    @property
    def orphan(self) -> S | None:
        """The parked session if its job is gone: its event loop was closed."""
        job = None if self.job is None else self.job()
        return None if self.trying or (job is not None and job.alive()) else self.parked

    def notify(self) -> None:
        """Wake the first waiter, unless a session is parked for it: it may try the lock, or has it."""
        if self.waiters and self.parked is None:
            self.waiters[0].signal.set()

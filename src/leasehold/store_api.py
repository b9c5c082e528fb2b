"""The Store port: six coroutines. What each promises is what every lock of this library rests on.

Read `docs/stores.md` for how each kind of system keeps these promises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from leasehold._model import (
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime


class Store(Protocol):
    """A coordination system, seen through one client. Its methods are used from many threads or tasks at once.

    Every method may raise `StoreUnavailable`, with ``unknown`` true when the request may have been carried out.
    ``within`` is the number of seconds that the call may take before it must give up with that error. A store sends
    each request once: the engine repeats, since it alone knows what a second answer means.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Try to take ``name`` for ``ticket``; with ``join`` stay in the queue if that is not possible now.

        Idempotent: a ticket that holds already is answered `Granted` with the same token and its lease is set to
        full length again; one that waits keeps its place, and its place is kept alive. `Granted.since` was read
        before anything was sent. Without ``join`` a ticket that is not granted leaves no trace, and never
        overtakes a waiter if it is fair.

        Raises:
            NameInUse: the name is in use as another primitive, or with another limit.

        """
        ...

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Remove ``ticket`` from ``name``, holding or waiting, and hand the name to the next in the same step.

        Return whether it was there. It touches no other ticket, whatever happened meanwhile; repeating it is
        harmless.
        """
        ...

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Set the leases of holders, and the places of waiters, to full length; answer for each in order.

        Never revives what has expired. A failure costs `RenewalResult.UNKNOWN` for those concerned, not the others.
        """
        ...

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until ``name`` is worth asking for again, at most ``timeout`` seconds.

        Nothing that happened after the `Wait` which brought ``mark`` is missed, except that a lost message may
        cost the time until the next renewal of the ticket. A leave of the ticket through this store ends it too.
        May bring the grant itself.
        """
        ...

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        """Show the names that begin with ``prefix`` (or are it) and are held, waited for or kept free."""
        ...

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        """Make a conditional change of the cell ``name``, or look at it."""
        ...

    async def diagnose(self) -> list[Finding]:
        """Look at the system's settings and say what they mean for the promises."""
        ...

    async def close(self) -> None:
        """Give back connections and files. Idempotent."""
        ...

    def after_fork(self) -> None:
        """Drop, in a forked child, everything inherited, without a word to the server."""
        ...


LossCallback = Callable[[RenewalResult, Collection[str] | None], None]
"""Takes what became of the tickets with these ids, or of all; it may be called from any thread and returns at once."""


@runtime_checkable
class ReportsLosses(Protocol):
    """A store that hears of losses by itself, as one with a session does, and need not wait to be asked.

    `RenewalResult.UNKNOWN` puts holds in doubt, and they are renewed as soon as possible; `RenewalResult.GONE` ends
    them.
    """

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` from now on."""
        ...


class ManyStore(Store, Protocol):
    """A store that claims and leaves several names in one request, as `Capabilities.together` says."""

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        """Claim different names in order, up to the first that cannot be had now; no ticket joins a queue.

        With ``keep`` the answers are one for each name that was claimed, `Granted` for those that are held and `Wait`
        for the last if it could not be had. Without it they are all `Granted`, or one `Wait` alone, and then none is
        held. Otherwise each claim is as `try_acquire` without ``join``. Who gets an error leaves with all tickets.
        """
        ...

    async def release_many(self, leaves: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        """Release several names, each as `release` does; return for each in order whether the ticket was there."""
        ...


class Watching(Protocol):
    """What a store has beside the rest if it can wake those who wait for a cell (`Capabilities.watches`)."""

    async def wait_for_cell(self, name: str, version: int, *, timeout: float) -> None:
        """Sleep until the cell may have another version than ``version``, at most ``timeout`` seconds.

        A hint: whoever wakes looks again. It ends at once if the cell has another version already.
        """
        ...


class Opener(Protocol):
    """What makes a store for one client: made from a URL, or by the user from a client object that exists already.

    Making an opener checks everything that can be checked without I/O; opening connects lazily.
    """

    def open(self, runtime: Runtime, namespace: str) -> Store: ...

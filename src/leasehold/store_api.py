"""The Store protocol, for authors of stores: what every lock of this library rests on.

An author imports from this module alone. `examples/example_store.py` is a complete small store.

Theory of operation
-------------------
A client chooses a `Ticket` *before* its first request, so every request can be repeated or undone by the ticket's id:

1. `Store.try_acquire` answers `Granted` with a fencing token, or `Wait` with a mark.
2. A waiter calls `Store.wait` with that mark, then `try_acquire` again, until it is granted or gives up.
3. The watchdog calls `Store.renew` at a third of the lease, for holders and for waiters.
4. `Store.release` removes the ticket, also after a lost reply or a cancelled acquire.

`Store.compare_and_set` keeps small values with versions, on which latches, barriers and cached values rest.

Three rules decide whether a store is safe:

- *Tokens strictly increase* for each name, whatever was lost: `max(stored + 1, the store's clock in microseconds)`.
- *The store's clock decides expiry.* `Granted.since` is read on the client's clock before the request was sent.
- *An error is honest*: `StoreUnavailable` with ``unknown`` true whenever the request may have been carried out.

A store declares its `Capabilities`; a primitive that needs more refuses at construction. An `Opener` makes the store:
pass it to ``Client(opener)``, or register a function from `StoreURL` to an opener in the entry-point group
``leasehold.stores`` under the URL's scheme. A store waits, sleeps and reads clocks through its `Runtime` only; then it
works in both flavors. The conformance kit (``leasehold_lab.conformance``) has the cases that every store must pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from leasehold._model import (
    CELL_LIMIT,
    META_LIMIT,
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    LeaseTerms,
    LockMode,
    Owner,
    QueueEntry,
    ReleaseReason,
    RenewalResult,
    Severity,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Flavor, Runtime, Signal
from leasehold._url import StoreURL
from leasehold.errors import NameInUse, StoreRefused, StoreUnavailable, Unsupported

__all__ = [
    "CELL_LIMIT",
    "META_LIMIT",
    "RESPONSE_TIMEOUT",
    "BatchStore",
    "Capabilities",
    "Cell",
    "Change",
    "Finding",
    "Flavor",
    "Granted",
    "Kind",
    "LeaseTerms",
    "LockMode",
    "LossCallback",
    "NameInUse",
    "Opener",
    "Owner",
    "QueueEntry",
    "ReleaseReason",
    "RenewalResult",
    "ReportsLosses",
    "Runtime",
    "Severity",
    "Signal",
    "Store",
    "StoreRefused",
    "StoreURL",
    "StoreUnavailable",
    "Ticket",
    "Unsupported",
    "View",
    "Wait",
    "Watching",
]


class Store(Protocol):
    """A coordination system, as one client uses it. Its methods are called by many threads or tasks at once.

    Every method may raise `StoreUnavailable`, with ``unknown`` true when the request may have been carried out.
    ``within`` is the number of seconds that the call may take; then it raises that error. A store sends each
    request once: the engine repeats it, since only the engine knows what a second answer means.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this store promises."""
        ...

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Try to take ``name`` for ``ticket``; with ``join`` stay in the queue if that is not possible now.

        Idempotent: a ticket that holds already gets `Granted` with the same token, and its lease is set to full
        length; one that waits keeps its queue entry, and the entry is renewed. `Granted.since` was read before
        anything was sent. Without ``join`` a ticket that is not granted leaves no trace, and never
        overtakes a waiter if it is fair.

        Raises:
            NameInUse: the name is in use as another primitive, or with another limit.
        """
        ...

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Remove ``ticket`` from ``name``, holding or waiting, and hand the name to the next in the same step.

        Return whether it was there. It changes no other ticket, and a repetition is harmless. A waiter that gives up
        is released, too.
        """
        ...

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Set the leases of holders, and the queue entries of waiters, to full length; answer for each in order.

        Never revives what has expired. A failure costs `RenewalResult.UNKNOWN` for those concerned, not the others.
        If it concerns all, raise it: the holders' log then has the reason.
        """
        ...

    def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Awaitable[Granted | None]:
        """Sleep until ``name`` is worth asking for again, at most ``timeout`` seconds.

        No event after the `Wait` with this ``mark`` is missed; a lost message costs at most the time until the next
        renewal of the ticket. A release of the ticket through this store ends the wait, too. Return the grant if the
        store hands it over with the message, else None. It may be an ``async def``, as the others are.
        """
        ...

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        """Show the names that begin with ``prefix`` (or are it) and are held, waited for or kept free.

        Many names take several requests; each of them may take ``within`` seconds.
        """
        ...

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        """Make a conditional change of the cell ``name``, or read it; return the cell afterwards."""
        ...

    async def diagnose(self) -> list[Finding]:
        """Check the system's settings; return what they mean for the promises."""
        ...

    async def close(self) -> None:
        """Close connections and files. Idempotent."""
        ...

    def after_fork(self) -> None:
        """Drop, in a forked child, everything inherited; send nothing to the server."""
        ...


LossCallback = Callable[[RenewalResult, Collection[str] | None], None]
"""Takes what became of the tickets with these ids, or of all; it may be called from any thread and returns at once."""


@runtime_checkable
class ReportsLosses(Protocol):
    """A store that notices losses by itself, as one with a session does, before the next renewal.

    `RenewalResult.UNKNOWN` puts holds in doubt, and they are renewed as soon as possible; `RenewalResult.GONE` ends
    them.
    """

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` from now on."""
        ...


class BatchStore(Store, Protocol):
    """A store that acquires and releases several names in one request (`Capabilities.batches`)."""

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        """Acquire different names in order, up to the first that is not free now; no ticket joins a queue.

        With ``keep`` there is one answer for each name that was tried: `Granted` for those held, and `Wait` for
        the last if it was not free. Without it the answers are all `Granted`, or one `Wait` alone, and then none is
        held. Each name is acquired as by `try_acquire` without ``join``. After an error, release all.
        """
        ...

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        """Release different names, each as `release` does; return for each in order whether the ticket was there."""
        ...


class Watching(Protocol):
    """What a store has in addition if it can notify those who wait for a cell (`Capabilities.watches`)."""

    async def wait_for_cell(self, name: str, version: int, *, timeout: float) -> None:
        """Sleep until the cell may have another version than ``version``, at most ``timeout`` seconds.

        A hint: the caller reads the cell again. It returns at once if the cell has another version already.
        """
        ...


class Opener(Protocol):
    """What makes a store for one client: made from a URL, or by the user from a client object that exists already.

    Making an opener checks everything that can be checked without I/O; opening connects lazily.
    """

    def open(self, runtime: Runtime, namespace: str) -> Store:
        """Make the store of one client; names of different namespaces never collide."""
        ...

"""What happened to locks, as frozen records for observers: for metrics, logs and alerts.

Theory of operation
-------------------
A client calls its observer with one event for each step of a hold's life, in this order:

1. `Queued`, if the name was taken, at most once for each acquire;
2. `Acquired`, or `GaveUp` if the acquire ended without the lock;
3. `InDoubt` when a renewal failed, and `Renewed` when a later one succeeded, any number of times;
4. `Released`, or `Lost` if the lease ended first.

The observer is called in the thread or task that acts, also in the client's watchdog. It must return quickly: renewals
wait for it. An exception that it raises is logged and changes nothing. Events have no secret and no ticket id.

An observer with a method ``wants(kind)`` is asked once for each class when its client is made. What it does not want
costs nothing, but each unconfirmed `Released` is sent. Only it gets `RequestFailed`, `Reconnected` and `RenewedLate`.

Example:
    ```python
    from leasehold import Client
    from leasehold.events import Acquired, Event

    def observer(event: Event) -> None:
        if isinstance(event, Acquired):
            print(f"{event.name}: waited {event.waited:.3f} s")

    with Client.from_url("memory:", observer=observer) as locks, locks.lock("stock:42"):
        pass
    ```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from leasehold.errors import StoreUnavailable

__all__ = [
    "Acquired",
    "Event",
    "GaveUp",
    "InDoubt",
    "Lost",
    "Observer",
    "Queued",
    "Reconnected",
    "Released",
    "Renewed",
    "RenewedLate",
    "RequestFailed",
    "SelectiveObserver",
    "Tally",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one attempt to acquire a name."""

    name: str  # the lock's
    owner: str  # the client that acts, as ``host:pid:client``
    at: float  # reading of the boot-time clock in seconds: for differences, it is no time of day
    time: float  # the wall clock, in seconds since 1970
    store: str  # the store's URL without secrets, or a description of a store that was opened without a URL
    namespace: str  # the client's
    kind: str  # what uses the name: ``mutex`` (lock, rlock and all that rest on one), ``rw`` or ``semaphore``
    error: StoreUnavailable | None = field(default=None, kw_only=True)  # why a renewal failed; None in other events


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The name is taken, and the acquire waits in the queue."""

    held_by: str | None  # the holder of the name, as ``host:pid:client``; None where the store does not say


@dataclass(frozen=True, slots=True)
class Acquired(Event):
    """The client holds the name."""

    token: int  # the fencing token, here and in all later events
    waited: float  # seconds from the start of the acquire
    queued: bool = field(default=False, kw_only=True)  # whether it ends a `Queued`


@dataclass(frozen=True, slots=True)
class GaveUp(Event):
    """The acquire ended without the lock: timeout, cancellation or an error."""

    waited: float  # seconds from the start of the acquire
    why: str  # the reason, for people
    queued: bool = field(default=False, kw_only=True)  # whether it ends a `Queued`


@dataclass(frozen=True, slots=True)
class InDoubt(Event):
    """A renewal failed; it is retried until the lease ends."""

    token: int
    remaining: float  # seconds until the lease ends; ``error`` has the reason, where it is known


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """The lease is at full length again after it had been in doubt. Other renewals make no event."""

    token: int


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The lease ended before its holder released it; ``error`` is set if it could not be renewed."""

    token: int
    why: str  # the reason, for people
    held: float = field(default=0.0, kw_only=True)  # seconds from the acquire to the loss


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The holder released."""

    token: int
    held: float  # seconds from the acquire to the release
    confirmed: bool  # whether the store answered; if not, it frees the name by the end of the lease at the latest
    took: float = field(default=0.0, kw_only=True)  # seconds that the release took


@dataclass(frozen=True, slots=True)
class RequestFailed(Event):
    """A request had no answer, or a refusal: see ``error``. Most are repeated."""

    request: str  # ``acquire``, ``wait``, ``renew`` (once for a batch) or ``release``


@dataclass(frozen=True, slots=True)
class Reconnected(Event):
    """The store answered this client again."""

    after: float  # seconds since the first `RequestFailed`


@dataclass(frozen=True, slots=True)
class RenewedLate(Event):
    """A renewal was confirmed with less than a third of the lease left; two thirds are usual."""

    token: int
    remaining: float  # seconds that were left


Observer = Callable[[Event], None]
"""Called with each event; must return quickly."""


class SelectiveObserver(Protocol):
    """An observer that says beforehand which events are worth making: acquires and releases happen all the time."""

    def wants(self, kind: type[Event], /) -> bool: ...

    def __call__(self, event: Event, /) -> None: ...


class Tally(SelectiveObserver, Protocol):
    """An observer that counts acquires and releases from bare figures, which cost a fraction of an event.

    It gets all of them, whatever it wants. It must neither block nor call the library.
    """

    def acquired(self, name: str, waited: float, queued: bool, /) -> None: ...

    def released(self, name: str, held: float, /) -> None: ...

"""What happened, as frozen records for observers. They carry no secret and no ticket id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one attempt at one name. ``at`` is the boot-time clock in seconds."""

    name: str
    owner: str
    at: float


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The name is taken; we wait in the queue."""

    held_by: str | None


@dataclass(frozen=True, slots=True)
class Acquired(Event):
    """We hold the name. ``waited``: seconds from the start of the acquire."""

    token: int
    waited: float


@dataclass(frozen=True, slots=True)
class GaveUp(Event):
    """The acquire ended without the lock: timeout, cancellation or an error."""

    waited: float
    why: str


@dataclass(frozen=True, slots=True)
class InDoubt(Event):
    """A renewal failed; it is tried again until the lease runs out in ``remaining`` seconds."""

    token: int
    remaining: float


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """The lease is at full length again after it had been in doubt."""

    token: int


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The lease ended before its holder released it."""

    token: int
    why: str


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The holder released. Not ``confirmed``: the store did not answer; it frees the name by the end of the lease."""

    token: int
    held: float
    confirmed: bool


Observer = Callable[[Event], None]


def wants_of(observe: Observer | None) -> Callable[[type[Event]], bool]:
    """Return what says whether such an event is worth making: an observer may have a method ``wants`` that says no.

    It is asked for what happens all the time, acquires and releases: most often nobody listens.
    """
    if observe is None:
        return lambda _: False
    says: Callable[[type[Event]], bool] | None = getattr(observe, "wants", None)
    return (lambda _: True) if says is None else says

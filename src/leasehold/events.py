"""What happened, as frozen records for observers. They carry no secret and no ticket id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


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


class SelectiveObserver(Protocol):
    """An observer that says beforehand which events are worth making: acquires and releases happen all the time."""

    def wants(self, kind: type[Event], /) -> bool: ...

    def __call__(self, event: Event, /) -> None: ...

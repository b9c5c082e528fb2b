"""What an acquire wants, and what it returns when it did not get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from leasehold._model import LeaseTerms, Owner


@dataclass(frozen=True, slots=True)
class NotAcquired:
    """An acquire that ended without the lock: someone else holds it, or nobody may (``blocked_why``, for people)."""

    waited: float
    held_by: Owner | None
    blocked_why: str = ""


class AcquireRequest(NamedTuple):
    """What an acquire wants. One is made with each lock object, so cheaply.

    Attributes:
        name: the name.
        terms: of its tickets.
        join: it waits in the queue; else it tries once.
        renew: the watchdog renews it.
        max_hold: seconds for which it does; None for as long as the holder lives.
        beside: see `Ticket`.

    """

    name: str
    terms: LeaseTerms
    join: bool = True
    renew: bool = True
    max_hold: float | None = None
    alongside: str = ""

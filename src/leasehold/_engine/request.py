"""What an acquire requests, and what it returns when it was not granted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from leasehold._model import LeaseTerms, Owner


@dataclass(frozen=True, slots=True)
class NotAcquired:
    """An acquire that ended without the lock: someone else holds it, or nobody may (``blocked_why``, for messages)."""

    waited: float
    held_by: Owner | None
    blocked_why: str = ""


class AcquireRequest(NamedTuple):
    """What an acquire requests. Each lock object makes one, so it must be cheap.

    Attributes:
        name: the name of the lock.
        terms: of its tickets.
        join: whether to wait in the queue; else it tries once.
        renew: whether the watchdog renews the lease.
        max_hold: seconds for which the watchdog renews it; None for no limit.
        alongside: see `Ticket`.
    """

    name: str
    terms: LeaseTerms
    join: bool = True
    renew: bool = True
    max_hold: float | None = None
    alongside: str = ""

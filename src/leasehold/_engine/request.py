"""What an acquire requests, and what it returns when it was not granted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from leasehold._model import LeaseTerms, Owner

Nested = Literal["warn", "raise"]
"""What a lock does if its thread or task waits for a hold of its own: warns, or raises RuntimeError."""


@dataclass(frozen=True, slots=True)
class NotAcquired:
    """An acquire that ended without the lock: someone else holds it, or nobody may (``blocked_why``, for messages)."""

    waited: float
    held_by: Owner | None
    blocked_why: str = ""


class AcquireRequest(NamedTuple):
    """What an acquire requests. Each lock object makes one, so it must be cheap."""

    name: str
    terms: LeaseTerms
    join: bool = True  # whether to wait in the queue; else it tries once
    renew: bool = True  # whether the watchdog renews the lease
    max_hold: float | None = None  # seconds for which the watchdog renews it; None for no limit
    alongside: str = ""  # see `Ticket`
    nested: Nested | None = None  # what to do if it waits for a hold of its own thread or task; None: nothing

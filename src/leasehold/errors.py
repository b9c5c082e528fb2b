"""The errors of leasehold: one base, and one class for each outcome that a caller treats differently.

Four outcomes of an acquire are never mixed up: *the name is held* is ``None`` or `AcquireTimeout`; *the store does
not answer* is `StoreUnavailable`, and its subclass `StoreRefused` where the store answered with an error; *the lease
expired during the acquire* is `LeaseLost`; *the store cannot promise it* is `Unsupported`.
Bad input is a plain `ValueError` or `TypeError` that names the input and the remedy.
"""

from __future__ import annotations

import enum
from typing import Any


class LeaseholdError(Exception):
    """Base of all errors of this library. It carries facts besides the message; those that do not apply are None.

    Attributes:
        message: the text.
        name: the lock's name.
        owner: who asked, as ``host:pid:client``.
        token: the fencing token of the hold concerned.
        waited: seconds spent waiting.
        held_by: who held the name at the last answer of the store, as ``host:pid:client``.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        owner: str | None = None,
        token: int | None = None,
        waited: float | None = None,
        held_by: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.name = name
        self.owner = owner
        self.token = token
        self.waited = waited
        self.held_by = held_by


class AcquireTimeout(LeaseholdError, TimeoutError):
    """The lock could not be acquired in time: another holds it, or is ahead in the queue."""


class LeaseLost(LeaseholdError):
    """The lease ended before its holder released it. The guarded code may have run alongside another holder.

    A resource that checks fencing tokens refuses this holder's writes from the moment a newer holder writes. Earlier
    writes were applied. So read the present state before you repeat the work.
    """


class NotHeld(LeaseholdError, RuntimeError):
    """A release by a thread or task that does not hold the lock, or a check of a hold that was released."""


class StoreUnavailable(LeaseholdError, ConnectionError):
    """The store did not answer, or refused to serve. The holder of the name is unknown.

    Attributes:
        unknown: True when the request may have been carried out all the same (the reply was lost), and False when it
            certainly was not (refused, or never sent).
        lasting: True when a repetition cannot help until something is changed, for example a missing right.
    """

    lasting = False

    def __init__(self, message: str, *, unknown: bool = False, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.unknown = unknown


class Outcome(enum.Enum):
    """The outcome of a request that the store answered with an error.

    Attributes:
        NOT_APPLIED: it was rolled back.
        AGAIN: it was rolled back by a conflict (deadlock, serialization), and may be retried at once.
        UNKNOWN: the error came in a commit; perhaps it was carried out.
        LASTING: it was rolled back, and a retry cannot help until something is changed.
    """

    NOT_APPLIED = "not applied"
    AGAIN = "again"
    UNKNOWN = "unknown"
    LASTING = "lasting"


class StoreRefused(StoreUnavailable):
    """The store answered, and refused: a right, a table or a setting is missing, or it cannot serve now.

    Attributes:
        code: the store's own code of the error as text, as an SQLSTATE; empty where there is none.
        outcome: what became of the request, an `Outcome`; ``unknown`` and ``lasting`` follow from it.
    """

    def __init__(self, message: str, *, code: str = "", outcome: Outcome = Outcome.LASTING, **facts: Any) -> None:
        facts.setdefault("unknown", outcome is Outcome.UNKNOWN)
        super().__init__(message, **facts)
        self.code = code
        self.outcome = outcome
        self.lasting = outcome is Outcome.LASTING


class Conflict(LeaseholdError):
    """A value was not written: it no longer had the version that the writer had read.

    An error and not a return value: a return value that is ignored would be a lost update.

    Attributes:
        value: the present value.
        version: the version of the present value; 0 if there is no value.
    """

    def __init__(self, message: str, *, value: Any = None, version: int = 0, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.value = value
        self.version = version


class NameInUse(LeaseholdError):
    """The name is in use as another primitive, or with another limit."""


class BrokenBarrier(LeaseholdError, RuntimeError):
    """The barrier is broken: a member died, gave up or failed, or `abort` or `reset` was called."""


class Unsupported(LeaseholdError):
    """The store cannot promise what was asked; the message has the reason.

    It is raised when the object is made. If only the server can tell, the first request raises it: a server that is too
    old or of another kind, a network file system, a pooler with ``mode=session``. It is no `StoreUnavailable`.
    """


class MissingDriver(LeaseholdError, ImportError):
    """A driver is not installed. The message is the line that installs it."""

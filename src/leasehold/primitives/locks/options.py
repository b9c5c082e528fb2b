"""The options of a lock, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold import _validate
from leasehold._engine.cancellation import Cancellation
from leasehold._engine.engine import Engine
from leasehold._model import Kind, LeaseTerms, LockMode
from leasehold._validate import Meta, Seconds
from leasehold.errors import Unsupported

__all__ = ["DEFAULT_LEASE", "LATCH_TTL", "TICK_TTL", "VERSIONED_TTL", "Cancellation", "Options", "checked"]

DEFAULT_LEASE = 30.0
"""Seconds. Longer than the pauses of most programs; a crash blocks others for at most so long."""

LATCH_TTL = 7 * 86_400.0
"""Seconds for which a latch is kept after the last count."""

TICK_TTL = 7 * 86_400.0
"""Seconds for which the last tick of a scheduled job is remembered: hardly an instance begins one later than a week."""

VERSIONED_TTL = 365 * 86_400.0
"""Seconds. Stores drop a value that was not written for so long, so that they do not fill up."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one lock object, in seconds.

    Attributes:
        terms: what the store gets with each ticket.
        renew: whether the watchdog renews; False is a fixed lease.
        max_hold: seconds for which it renews; None for as long as the holder lives.
        timeout: seconds that an acquire waits by default; None waits without end.
    """

    terms: LeaseTerms
    renew: bool
    max_hold: float | None
    timeout: float | None

    @classmethod
    def checked(
        cls,
        engine: Engine,
        mode: LockMode,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
        at_least: float | None = None,
    ) -> Options:
        """Check what a user passed, as the clients document it.

        Raises:
            TypeError, ValueError: the message names the option, and what it may be.
            Unsupported: the store cannot promise it.
        """
        terms = LeaseTerms(
            mode,
            engine.owner,
            lease=_validate.lease(lease),
            lock_delay=_validate.at_least_zero(lock_delay, "lock_delay", _validate.LONGEST_DELAY),
            meta=_validate.meta(meta),
            at_least=at_least,
        )
        _refuse_unsupported(engine, terms)
        cap = None if max_hold is None else _validate.above_zero(max_hold, "max_hold")
        if cap is not None and not renew:
            raise ValueError("max_hold caps renewing, and renew=False does not renew; leave one of them out")
        return cls(engine.shared_terms(terms), bool(renew), cap, _validate.timeout(timeout))


def _refuse_unsupported(engine: Engine, terms: LeaseTerms) -> None:
    """Raise `Unsupported`, when the object is made, for what the store cannot promise."""
    can, fair = engine.store.capabilities, terms.mode.fair
    fair_together = fair and terms.mode.kind is not Kind.MUTEX
    missing = [
        what
        for what, wanted, offered in (
            ("fair order", fair, can.fair),
            ("fair order of readers, writers and permits (pass fair=False)", fair_together, can.fair_shared),
            ("a lock delay after an expiry", terms.lock_delay > 0, can.lock_delay),
            ("shared locks", not terms.mode.exclusive, can.shared),
            ("permits", terms.mode.kind is Kind.SEMAPHORE, can.permits),
            ("metadata (leave out meta=)", bool(terms.meta), can.meta),
            ("a lock that is no run of a job", terms.at_least is None, not can.only_runs),
        )
        if wanted and not offered
    ]
    if missing:
        instead = can.why_not or "use another store, or do without"
        raise Unsupported(f"{engine.store!r} cannot promise {' and '.join(missing)}; {instead}")
    if terms.lease + terms.lock_delay > can.longest:
        raise Unsupported(
            f"{engine.store!r} takes no lease longer than {can.longest:g} s, lock delay included, and this is one of "
            f"{terms.lease + terms.lock_delay:g} s; pass a shorter lease, or raise longest_lease in the URL of all "
            "clients"
        )


def checked(cancel: object) -> Cancellation | None:
    """Check what was passed as ``cancel``."""
    if cancel is None or isinstance(cancel, Cancellation):
        return cancel
    raise TypeError(f"cancel must be a leasehold.Cancellation, not {type(cancel).__name__}")

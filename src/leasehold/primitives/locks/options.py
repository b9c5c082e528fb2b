"""What a user can say about a lock, checked once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._model import Kind, LeaseTerms, LockMode
from leasehold._validate import Meta, Seconds
from leasehold.errors import Unsupported

DEFAULT_LEASE = 30.0
"""Seconds. Long enough to ride over a pause of most programs; a crash blocks others for at most so long."""


class LeaseOptions(TypedDict, total=False):
    """What can be said, by name, of everything that is held under a lease."""

    lease: Seconds
    """Seconds for which the store keeps it without news of its holder; 30 unless said otherwise."""
    renew: bool
    """Whether it is renewed while its holder lives. False is a fixed lease, which ends however long the work takes."""
    max_hold: Seconds | None
    """Seconds after which it is renewed no more; None for no end."""
    lock_delay: Seconds
    """Seconds for which nobody gets the name after this holder's lease *expired*, for resources that cannot check a
    token. A release frees it at once. 0 unless said otherwise."""
    timeout: Seconds | None
    """Seconds that ``with`` and ``acquire`` wait at most; None waits for ever."""


class LockOptions(LeaseOptions, total=False):
    """What can be said, by name, of a lock."""

    meta: Meta | None
    """Shown to people who look: a text or a mapping, up to 1 KiB as JSON."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one lock object, in seconds.

    Attributes:
        terms: what the store is told with each ticket.
        renew: whether the watchdog renews; False is a fixed lease.
        max_hold: how long it renews; None for as long as the holder lives.
        timeout: how long an acquire waits by default; None for ever.

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
        given: LockOptions,
    ) -> Options:
        """Check what a user passed.

        Raises:
            TypeError, ValueError: the message names the option, and what it may be.
            Unsupported: the store cannot promise it.

        """
        refuse_unknown(given, LockOptions)
        renew, max_hold = given.get("renew", True), given.get("max_hold")
        terms = LeaseTerms(
            mode,
            engine.owner,
            lease=_validate.lease(given.get("lease", DEFAULT_LEASE)),
            lock_delay=_validate.at_least_zero(given.get("lock_delay", 0.0), "lock_delay", _validate.LONGEST_DELAY),
            meta=_validate.meta(given.get("meta")),
        )
        _refuse_unsupported(engine, terms)
        cap = None if max_hold is None else _validate.above_zero(max_hold, "max_hold")
        if cap is not None and not renew:
            raise ValueError("max_hold caps renewing, and renew=False does not renew; leave one of them out")
        return cls(engine.same(terms), bool(renew), cap, _validate.timeout(given.get("timeout")))


def refuse_unknown(given: LeaseOptions, known: type[LeaseOptions]) -> None:
    """Raise TypeError for an option that ``known`` does not have."""
    for key in given:
        if key not in known.__annotations__:
            raise TypeError(f"there is no option {key!r} here; options are: fair, {', '.join(known.__annotations__)}")


def _refuse_unsupported(engine: Engine, terms: LeaseTerms) -> None:
    """Refuse, when the object is made, what the store cannot promise."""
    can = engine.store.capabilities
    missing = [
        what
        for what, wanted, offered in (
            ("fair order", terms.mode.fair, can.fair),
            ("a lock delay after an expiry", terms.lock_delay > 0, can.lock_delay),
            ("shared locks", not terms.mode.exclusive, can.shared),
            ("permits", terms.mode.kind is Kind.SEMAPHORE, can.permits),
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

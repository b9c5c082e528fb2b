"""What a user can say about a lock, checked once and kept."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold import validate
from leasehold.engine.acquire import Engine
from leasehold.errors import Unsupported
from leasehold.model import Kind, Rule, Terms
from leasehold.validate import Meta, Seconds

DEFAULT_LEASE = 30.0
"""Seconds. Long enough to ride over a pause of most programs; a crash blocks others for at most so long."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one lock object, in seconds.

    Attributes:
        terms: what the store is told with each ticket.
        renew: whether the keeper renews; False is a fixed lease.
        max_hold: how long it renews; None for as long as the holder lives.
        timeout: how long an acquire waits by default; None for ever.

    """

    terms: Terms
    renew: bool
    max_hold: float | None
    timeout: float | None

    @classmethod
    def checked(
        cls,
        engine: Engine,
        rule: Rule,
        *,
        lease: Seconds,
        renew: bool,
        max_hold: Seconds | None,
        delay: Seconds,
        timeout: Seconds | None,
        meta: Meta | None,
    ) -> Options:
        """Check what a user passed."""
        terms = Terms(
            rule,
            engine.owner,
            lease=validate.lease(lease),
            delay=validate.at_least_zero(delay, "delay", validate.LONGEST_DELAY),
            meta=validate.meta(meta),
        )
        _refuse_unsupported(engine, terms)
        cap = None if max_hold is None else validate.above_zero(max_hold, "max_hold")
        if cap is not None and not renew:
            raise ValueError("max_hold caps renewing, and renew=False does not renew; leave one of them out")
        return cls(terms, bool(renew), cap, validate.timeout(timeout))


def _refuse_unsupported(engine: Engine, terms: Terms) -> None:
    """Refuse, when the object is made, what the store cannot promise."""
    can = engine.store.capabilities
    missing = [
        what
        for what, wanted, offered in (
            ("fair order", terms.rule.fair, can.fair),
            ("a delay after an expiry", terms.delay > 0, can.delay),
            ("shared locks", not terms.rule.exclusive, can.shared),
            ("permits", terms.rule.kind is Kind.SEMAPHORE, can.permits),
        )
        if wanted and not offered
    ]
    if missing:
        raise Unsupported(f"{engine.store!r} cannot promise {' and '.join(missing)}; use another store, or do without")

"""Names with many holders, read-write locks and semaphores: words to their scripts, and what people see of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket

SEPARATOR = "\x1f"

FIRST = 2**52
"""What is taken off the arrival number of a waiter that stands before all others; see ``scripts/shared_common.lua``."""

_SEMAPHORE = "semaphore of "


def is_shared(ticket: Ticket) -> bool:
    """Say whether a ticket's name may have many holders."""
    return ticket.terms.mode.kind is not Kind.MUTEX


def use_of(mode: LockMode) -> str:
    """Return what the name is used as: it is stored, compared and shown."""
    return f"{_SEMAPHORE}{mode.limit}" if mode.kind is Kind.SEMAPHORE else mode.kind.value


def rule_of(use: str) -> LockMode:
    """Read back what `use_of` wrote."""
    if use.startswith(_SEMAPHORE):
        return LockMode(Kind.SEMAPHORE, limit=int(use.removeprefix(_SEMAPHORE)))
    return LockMode(Kind.READ_WRITE)


def claim_words(ticket: Ticket, *, join: bool, channel: bytes) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_claim.lua``."""
    terms, mode = ticket.terms, ticket.terms.mode
    return (
        ticket.id.encode(),
        use_of(mode).encode(),
        _ms(terms.lease),
        _ms(terms.lock_delay),
        b"%d" % join,
        b"%d" % mode.fair,
        channel,
        str(terms.owner).encode(),
        terms.meta.encode(),
        b"%d" % mode.exclusive,
        b"%d" % mode.upgradeable,
        b"%d" % mode.permits,
        ticket.alongside.encode(),
    )


def leave_words(ticket: Ticket, *, broken: bool) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_leave.lua``."""
    return ticket.id.encode(), use_of(ticket.terms.mode).encode(), b"%d" % broken


def stay_words(tickets: Sequence[Ticket]) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_stay.lua``: tickets of one name and use."""
    pairs = ((ticket.id.encode(), _ms(ticket.terms.lease)) for ticket in tickets)
    return (use_of(tickets[0].terms.mode).encode(), *itertools.chain.from_iterable(pairs))


def renew_words(tickets: Iterable[Ticket]) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_renew.lua``."""
    those = ((use_of(t.terms.mode).encode(), t.id.encode(), _ms(t.terms.lease)) for t in tickets)
    return tuple(itertools.chain.from_iterable(those))


def holders(shares: Sequence[str], use: str, now_ms: float) -> tuple[tuple[QueueEntry, ...], float]:
    """Read the holders that ``look.lua`` shows.

    Returns:
        Those whose lease has not ended, in order of their tokens, and the time in ms until which those whose lease has
        ended keep the name free.

    """
    found: list[QueueEntry] = []
    blocked_until = 0.0
    for ticket, expires, fields in zip(shares[::3], shares[1::3], shares[2::3], strict=True):
        token, lease, lock_delay, owner, alone, upgradeable, permits, meta = fields.split(SEPARATOR, 7)
        if float(expires) <= now_ms:
            blocked_until = max(blocked_until, float(expires) + int(lock_delay)) if int(lock_delay) else blocked_until
            continue
        terms = _terms(use, (lease, lock_delay, owner, alone, upgradeable, permits, meta))
        found.append(QueueEntry(Ticket(ticket, terms), 0, _left(float(expires) - now_ms, lease), int(token)))
    return tuple(sorted(found, key=lambda entry: entry.token or 0)), blocked_until


def waiter(ticket: str, order: float, expires: float, fields: str, use: str, now_ms: float) -> QueueEntry | None:
    """Read a waiter that ``look.lua`` shows; None if it is of another kind."""
    words = fields.split(SEPARATOR, 8)
    if len(words) < 9:
        return None
    _, lease, lock_delay, owner, alone, upgradeable, permits, alongside, meta = words
    terms = _terms(use, (lease, lock_delay, owner, alone, upgradeable, permits, meta))
    arrival = int(order + FIRST if order < 0 else order)
    return QueueEntry(Ticket(ticket, terms, alongside), arrival, _left(expires - now_ms, lease))


def _terms(use: str, words: tuple[str, ...]) -> LeaseTerms:
    lease, lock_delay, owner, alone, upgradeable, permits, meta = words
    name = rule_of(use)
    mode = LockMode(name.kind, alone == "1", upgradeable == "1", int(permits), name.limit)
    return LeaseTerms(mode, Owner.parse(owner), int(lease) / 1000, int(lock_delay) / 1000, meta)


def _left(milliseconds: float, lease: str) -> float:
    return min(milliseconds, int(lease)) / 1000  # an expiry is rounded up to a whole millisecond


def _ms(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)

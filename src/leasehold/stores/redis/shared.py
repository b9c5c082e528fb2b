"""Names with many holders, read-write locks and semaphores: words to their scripts, and what people see of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from leasehold._model import Kind, Owner, Rule, Seat, Terms, Ticket

SEPARATOR = "\x1f"

FIRST = 2**52
"""What is taken off the arrival number of a waiter that stands before all others; see ``scripts/shared_common.lua``."""

_SEMAPHORE = "semaphore of "


def is_shared(ticket: Ticket) -> bool:
    """Say whether a ticket's name may have many holders."""
    return ticket.terms.rule.kind is not Kind.MUTEX


def use_of(rule: Rule) -> str:
    """Return what the name is used as: it is stored, compared and shown."""
    return f"{_SEMAPHORE}{rule.limit}" if rule.kind is Kind.SEMAPHORE else rule.kind.value


def rule_of(use: str) -> Rule:
    """Read back what `use_of` wrote."""
    if use.startswith(_SEMAPHORE):
        return Rule(Kind.SEMAPHORE, limit=int(use.removeprefix(_SEMAPHORE)))
    return Rule(Kind.READ_WRITE)


def claim_words(ticket: Ticket, *, join: bool, channel: bytes) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_claim.lua``."""
    terms, rule = ticket.terms, ticket.terms.rule
    return (
        ticket.id.encode(),
        use_of(rule).encode(),
        _ms(terms.lease),
        _ms(terms.delay),
        b"%d" % join,
        b"%d" % rule.fair,
        channel,
        str(terms.owner).encode(),
        terms.meta.encode(),
        b"%d" % rule.exclusive,
        b"%d" % rule.upgradeable,
        b"%d" % rule.permits,
        ticket.beside.encode(),
    )


def leave_words(ticket: Ticket, *, broken: bool) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_leave.lua``."""
    return ticket.id.encode(), use_of(ticket.terms.rule).encode(), b"%d" % broken


def stay_words(tickets: Sequence[Ticket]) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_stay.lua``: tickets of one name and use."""
    pairs = ((ticket.id.encode(), _ms(ticket.terms.lease)) for ticket in tickets)
    return (use_of(tickets[0].terms.rule).encode(), *itertools.chain.from_iterable(pairs))


def renew_words(tickets: Iterable[Ticket]) -> tuple[bytes, ...]:
    """Return the arguments of ``shared_renew.lua``."""
    those = ((use_of(t.terms.rule).encode(), t.id.encode(), _ms(t.terms.lease)) for t in tickets)
    return tuple(itertools.chain.from_iterable(those))


def holders(shares: Sequence[str], use: str, now_ms: float) -> tuple[tuple[Seat, ...], float]:
    """Read the holders that ``look.lua`` shows.

    Returns:
        Those whose lease has not ended, in order of their tokens, and the time in ms until which those whose lease has
        ended keep the name free.

    """
    found: list[Seat] = []
    barred = 0.0
    for ticket, expires, entry in zip(shares[::3], shares[1::3], shares[2::3], strict=True):
        token, lease, delay, owner, alone, upgradeable, permits, meta = entry.split(SEPARATOR, 7)
        if float(expires) <= now_ms:
            barred = max(barred, float(expires) + int(delay)) if int(delay) else barred
            continue
        terms = _terms(use, (lease, delay, owner, alone, upgradeable, permits, meta))
        found.append(Seat(Ticket(ticket, terms), 0, _left(float(expires) - now_ms, lease), int(token)))
    return tuple(sorted(found, key=lambda seat: seat.token or 0)), barred


def waiter(ticket: str, order: float, expires: float, entry: str, use: str, now_ms: float) -> Seat | None:
    """Read a waiter that ``look.lua`` shows; None if it is of another kind."""
    words = entry.split(SEPARATOR, 8)
    if len(words) < 9:
        return None
    _, lease, delay, owner, alone, upgradeable, permits, beside, meta = words
    terms = _terms(use, (lease, delay, owner, alone, upgradeable, permits, meta))
    arrival = int(order + FIRST if order < 0 else order)
    return Seat(Ticket(ticket, terms, beside), arrival, _left(expires - now_ms, lease))


def _terms(use: str, words: tuple[str, ...]) -> Terms:
    lease, delay, owner, alone, upgradeable, permits, meta = words
    name = rule_of(use)
    rule = Rule(name.kind, alone == "1", upgradeable == "1", int(permits), name.limit)
    return Terms(rule, Owner.parse(owner), int(lease) / 1000, int(delay) / 1000, meta)


def _left(milliseconds: float, lease: str) -> float:
    return min(milliseconds, int(lease)) / 1000  # an expiry is rounded up to a whole millisecond


def _ms(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)

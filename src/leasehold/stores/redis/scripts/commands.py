"""Which script, with which keys and arguments, for a ticket of which kind: a name has one holder, or may have many."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from leasehold._model import LeaseTerms, ReleaseReason, Ticket
from leasehold.stores.redis import keys, shared
from leasehold.stores.redis.scripts import (
    CLAIM,
    LEAVE,
    RENEW,
    SHARED_CLAIM,
    SHARED_LEAVE,
    SHARED_RENEW,
    SHARED_STAY,
    STAY,
    Script,
)

PER_SCRIPT = 100
"""Tickets in one renewal script: it keeps the server from others for well under a millisecond."""

Command = tuple[Script, Sequence[bytes], Sequence[bytes]]
"""Script, keys, arguments."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """One command that renews many tickets; if they wait (``stays``), its reply begins with the server's time."""

    command: Command
    tickets: Sequence[Ticket]
    stays: bool


def try_acquire(namespace: str, name: str, ticket: Ticket, *, join: bool, channel: bytes) -> Command:
    """Return the command that claims. For what is claimed again and again see `templates`."""
    if not shared.is_shared(ticket):
        words = (ticket.id.encode(), *mutex_words(ticket.terms, join=join, channel=channel))
        return CLAIM, keys.mutex_keys(namespace, name), words
    those = keys.shared_keys(namespace, name)
    return SHARED_CLAIM, those, shared.claim_words(ticket, join=join, channel=channel)


def release(namespace: str, name: str, ticket: Ticket, reason: ReleaseReason) -> Command:
    """Return the command that leaves."""
    broken = reason is ReleaseReason.BREAK
    if not shared.is_shared(ticket):
        return LEAVE, keys.mutex_keys(namespace, name), (ticket.id.encode(), b"%d" % broken)
    return SHARED_LEAVE, keys.shared_keys(namespace, name), shared.leave_words(ticket, broken=broken)


def leave_and_refuse(namespace: str, name: str, ticket: Ticket) -> Command:
    """Return the command that leaves, and makes the server refuse claims of the ticket that arrive later."""
    script, those, words = release(namespace, name, ticket, ReleaseReason.RELEASE)
    return script, those, (*words[:-1], b"2")


def mutex_words(terms: LeaseTerms, *, join: bool, channel: bytes) -> tuple[bytes, ...]:
    """Return the arguments of ``claim.lua`` behind the ticket."""
    return (
        b"%d" % ms(terms.lease),
        b"%d" % ms(terms.lock_delay),
        b"1" if join else b"0",
        b"1" if terms.mode.fair else b"0",
        channel,
        str(terms.owner).encode(),
        terms.meta.encode(),
    )


def renewals(namespace: str, holding: Iterable[tuple[str, Ticket]]) -> Iterator[Batch]:
    """Yield the commands that renew holders."""
    kinds: dict[bool, list[tuple[str, Ticket]]] = defaultdict(list)
    for name, ticket in holding:
        kinds[shared.is_shared(ticket)].append((name, ticket))
    for some in chunks(kinds[False], PER_SCRIPT):
        locks = tuple(keys.lock_key(namespace, name) for name, _ in some)
        tickets = [ticket for _, ticket in some]
        yield Batch((RENEW, locks, _leases(tickets)), tickets, stays=False)
    for some in chunks(kinds[True], PER_SCRIPT):
        tickets = [ticket for _, ticket in some]
        those = [key for name, _ in some for key in keys.share_keys(namespace, name)]
        yield Batch((SHARED_RENEW, those, shared.renew_words(tickets)), tickets, stays=False)


def stays(namespace: str, waiting: Iterable[tuple[str, Ticket]]) -> Iterator[Batch]:
    """Yield the commands that renew the places of waiters, which stand together if they wait for the same."""
    queues: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for name, ticket in waiting:
        queues[name, shared.use_of(ticket.terms.mode)].append(ticket)
    for (name, _), tickets in queues.items():
        for some in chunks(tickets, PER_SCRIPT):
            if shared.is_shared(some[0]):
                yield Batch((SHARED_STAY, keys.shared_keys(namespace, name), shared.stay_words(some)), some, stays=True)
            else:
                yield Batch((STAY, keys.mutex_keys(namespace, name), _leases(some)), some, stays=True)


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut into pieces of at most ``size``."""
    return (items[start : start + size] for start in range(0, len(items), size))


def ms(seconds: float) -> int:
    """Return whole milliseconds."""
    return round(seconds * 1000)


def _leases(tickets: Iterable[Ticket]) -> tuple[bytes, ...]:
    pairs = ((ticket.id.encode(), b"%d" % ms(ticket.terms.lease)) for ticket in tickets)
    return tuple(itertools.chain.from_iterable(pairs))

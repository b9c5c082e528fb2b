"""The commands of the store: for each step the script, its keys and its arguments.

A name has one holder (a mutex), or may have many (a read-write lock, a semaphore); each has its own scripts.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from leasehold._model import Change, Kind, LeaseTerms, LockMode, ReleaseReason, Ticket
from leasehold.errors import NameInUse
from leasehold.stores._common.answers import name_in_use
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import (
    CELL,
    CLAIM,
    CLAIM_MANY,
    RELEASE,
    RENEW,
    RENEW_WAITERS,
    SHARED_CLAIM,
    SHARED_RELEASE,
    SHARED_RENEW,
    SHARED_RENEW_WAITERS,
    Script,
)

PER_SCRIPT = 100
"""Tickets in one renewal script. So it occupies the server for well under a millisecond."""

Command = tuple[Script, Sequence[bytes], Sequence[bytes]]
"""Script, keys, arguments."""

T = TypeVar("T")

_SEMAPHORE = "semaphore of "

LAYOUT = 1
"""The layout of the keys of a name: their roles, types and fields.

A later version of leasehold whose keys this one cannot read writes ``layout N `` before the use, in the field ``k`` of
the lock's key. It keeps the ticket ``t`` (empty if there are several), the lock delay ``d`` and the time to live of
that key. So this version refuses the name while it is in use, and does not overwrite it.
"""

_OTHER_LAYOUT = re.compile(r"layout (\d+) .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Batch:
    """One command that renews many tickets.

    If they wait (``waiting``), the reply begins with the server's time in microseconds.
    """

    command: Command
    tickets: Sequence[Ticket]
    waiting: bool


def try_acquire(namespace: str, name: str, ticket: Ticket, *, join: bool, channel: bytes) -> Command:
    """Return the command that acquires. For a mutex see also `command_templates`, which packs it faster."""
    if not is_shared(ticket):
        args = (ticket.id.encode(), *mutex_args(ticket.terms, join=join, channel=channel))
        return CLAIM, keys.mutex_keys(namespace, name), args
    script_keys = keys.shared_keys(namespace, name)
    return SHARED_CLAIM, script_keys, _shared_claim_args(ticket, join=join, channel=channel)


def release(namespace: str, name: str, ticket: Ticket, reason: ReleaseReason) -> Command:
    """Return the command that releases a ticket, or takes it out of the queue."""
    broken = reason is ReleaseReason.BREAK
    if not is_shared(ticket):
        return RELEASE, keys.mutex_keys(namespace, name), (ticket.id.encode(), b"%d" % broken)
    args = ticket.id.encode(), use_of(ticket.terms.mode).encode(), b"%d" % broken
    return SHARED_RELEASE, keys.shared_keys(namespace, name), args


def try_acquire_many(namespace: str, claims: Sequence[tuple[str, Ticket]], *, keep: bool) -> Command:
    """Return the command that acquires names of one slot in order."""
    script_keys: list[bytes] = []
    args: list[bytes] = [b"%d" % keep]
    for name, ticket in claims:
        _, its_keys, acquire_args = try_acquire(namespace, name, ticket, join=False, channel=b"")
        _, _, release_args = release(namespace, name, ticket, ReleaseReason.RELEASE)
        kind = b"shared" if is_shared(ticket) else b""
        counts = [b"%d" % len(part) for part in (its_keys, acquire_args, release_args)]
        script_keys += its_keys
        args += [kind, *counts, *acquire_args, *release_args]
    return CLAIM_MANY, script_keys, args


def compare_and_set(namespace: str, name: str, change: Change) -> Command:
    """Return the command that reads or changes a cell."""
    args = (
        b"0" if change.value is None else b"1",
        change.value or b"",
        b"" if change.if_version is None else b"%d" % change.if_version,
        b"" if change.fence is None else b"%d" % change.fence,
        _milliseconds(change.ttl),
    )
    return CELL, (keys.cell_key(namespace, name),), args


def release_and_refuse(namespace: str, name: str, ticket: Ticket) -> Command:
    """Return the command that releases, and makes the server refuse claims of the ticket that arrive later."""
    script, script_keys, args = release(namespace, name, ticket, ReleaseReason.RELEASE)
    return script, script_keys, (*args[:-1], b"2")


def mutex_args(terms: LeaseTerms, *, join: bool, channel: bytes) -> tuple[bytes, ...]:
    """Return the arguments of ``claim.lua`` after the ticket."""
    return (
        _milliseconds(terms.lease),
        _milliseconds(terms.lock_delay),
        b"1" if join else b"0",
        b"1" if terms.mode.fair else b"0",
        channel,
        str(terms.owner).encode(),
        terms.meta.encode(),
    )


def renewals(namespace: str, holding: Iterable[tuple[str, Ticket]]) -> Iterator[Batch]:
    """Yield the commands that renew the leases of holders."""
    kinds: dict[bool, list[tuple[str, Ticket]]] = defaultdict(list)
    for name, ticket in holding:
        kinds[is_shared(ticket)].append((name, ticket))
    for some in chunks(kinds[False], PER_SCRIPT):
        locks = tuple(keys.lock_key(namespace, name) for name, _ in some)
        tickets = [ticket for _, ticket in some]
        yield Batch((RENEW, locks, renewal_args(tickets)), tickets, waiting=False)
    for some in chunks(kinds[True], PER_SCRIPT):
        tickets = [ticket for _, ticket in some]
        script_keys = [key for name, _ in some for key in keys.share_keys(namespace, name)]
        args = [arg for ticket in tickets for arg in (use_of(ticket.terms.mode).encode(), *renewal_args([ticket]))]
        yield Batch((SHARED_RENEW, script_keys, args), tickets, waiting=False)


def waiter_renewals(namespace: str, waiting: Iterable[tuple[str, Ticket]]) -> Iterator[Batch]:
    """Yield the commands that renew the queue entries of waiters: one or more for each name and use."""
    queues: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for name, ticket in waiting:
        queues[name, use_of(ticket.terms.mode)].append(ticket)
    for (name, use), tickets in queues.items():
        for some in chunks(tickets, PER_SCRIPT):
            if is_shared(some[0]):
                args = use.encode(), *renewal_args(some)
                yield Batch((SHARED_RENEW_WAITERS, keys.shared_keys(namespace, name), args), some, waiting=True)
            else:
                yield Batch((RENEW_WAITERS, keys.mutex_keys(namespace, name), renewal_args(some)), some, waiting=True)


def is_shared(ticket: Ticket) -> bool:
    """Return whether a ticket's name may have many holders."""
    return ticket.terms.mode.kind is not Kind.MUTEX


def use_of(mode: LockMode) -> str:
    """Return what a name is used as. The text is stored, compared and shown."""
    return f"{_SEMAPHORE}{mode.limit}" if mode.kind is Kind.SEMAPHORE else mode.kind.value


def other_layout(use: str) -> int | None:
    """Return the layout that a name in use has, if it is not ours."""
    found = _OTHER_LAYOUT.fullmatch(use)
    return int(found[1]) if found else None


def used_otherwise(name: str, use: bytes, mode: LockMode) -> NameInUse:
    """Return the error for a name that is in use as another primitive, or in the layout of another version."""
    other = other_layout(use.decode())
    if other is None:
        return name_in_use(name, use.decode(), mode)
    return NameInUse(
        f"another version of leasehold uses {name!r}, in layout {other}; this one knows layout {LAYOUT} of the keys on "
        "Redis: run the same version everywhere",
        name=name,
    )


def mode_of(use: str) -> LockMode:
    """Return the mode that a text of `use_of` means."""
    if use.startswith(_SEMAPHORE):
        return LockMode(Kind.SEMAPHORE, limit=int(use.removeprefix(_SEMAPHORE)))
    return LockMode(Kind.READ_WRITE)


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return pieces of at most ``size`` items."""
    return (items[start : start + size] for start in range(0, len(items), size))


def ms(seconds: float) -> int:
    """Return seconds as whole milliseconds."""
    return round(seconds * 1000)


def renewal_args(tickets: Iterable[Ticket]) -> tuple[bytes, ...]:
    """Return, for each ticket, the arguments that renew it: its id, and its lease in milliseconds."""
    pairs = ((ticket.id.encode(), _milliseconds(ticket.terms.lease)) for ticket in tickets)
    return tuple(itertools.chain.from_iterable(pairs))


def _shared_claim_args(ticket: Ticket, *, join: bool, channel: bytes) -> tuple[bytes, ...]:
    terms, mode = ticket.terms, ticket.terms.mode
    return (
        ticket.id.encode(),
        use_of(mode).encode(),
        _milliseconds(terms.lease),
        _milliseconds(terms.lock_delay),
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


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % ms(seconds)

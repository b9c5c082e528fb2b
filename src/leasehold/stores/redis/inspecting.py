"""Reading the holders and the waiters of a name, for people."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket, View
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.scripts import INSPECT
from leasehold.stores.redis.scripts.calls import Calls
from leasehold.stores.redis.scripts.commands import PER_SCRIPT, Command, chunks, mode_of, other_layout

SEPARATOR = "\x1f"

FIRST = 2**52
"""Subtracted from the arrival number of a waiter that precedes all others; see ``scripts/shared_common.lua``."""

MIGRATING = ("MOVED", "ASK", "TRYAGAIN")
"""Errors for a name of which another node has some keys or all."""


async def inspect(calls: Calls, namespace: str, prefix: str, *, exact: bool, within: float) -> list[View]:
    """Return the names in use that begin with ``prefix``, or, if ``exact``, that name only.

    Raises:
        StoreUnavailable: the server does not reply.
    """
    names = [prefix] if exact else [name async for name in calls.names(namespace, prefix, within=within)]
    elsewhere = MIGRATING[1:] if exact else MIGRATING  # the caller follows MOVED for its one name
    found: list[View] = []
    for some in chunks(names, PER_SCRIPT):
        looks: list[Command] = [(INSPECT, keys.shared_keys(namespace, name), ()) for name in some]
        for name, reply in zip(some, await calls.run_all(looks, within=within), strict=True):
            if not isinstance(reply, ReplyError):
                view_of_name = view(name, reply)
            elif reply.code in elsewhere and calls.moving is not None:
                view_of_name = await calls.moving(name, within)
            else:
                raise await calls.refused(reply, within)
            if view_of_name.holders or view_of_name.waiters or view_of_name.free_in > 0:
                found.append(view_of_name)
    return found


def owner(reply: Any) -> Owner | None:
    """Return the owner of the name, from the reply to a claim that must wait; None if it is free."""
    return _parsed(reply[3]) if len(reply) > 3 and reply[3] else None


@lru_cache(maxsize=256)
def _parsed(owner: bytes) -> Owner:
    return Owner.parse(owner.decode())  # cached: many waiters wait for the same holder


def view(name: str, reply: Any) -> View:
    """Return what a reply of ``scripts/inspect.lua`` shows."""
    now_us, fields, blocked, entries = int(reply[0]), [text_of(field) for field in reply[1]], int(reply[2]), reply[3]
    ticket, fence, lease, lock_delay, owner, meta, use, _ = fields
    if other_layout(use) is not None:  # its holders are not ours to read
        return View(name, Kind.MUTEX, int(fence or 0), (), (), max(blocked, 0) / 1000)
    if use != Kind.MUTEX and (use or reply[4]):
        return _shared(name, reply)
    free_in = max(blocked, 0) / 1000
    holders: tuple[QueueEntry, ...] = ()
    kept = int(lock_delay or 0) / 1000
    if ticket and free_in > kept:
        token = int(fence or 0)
        holders = (QueueEntry(ticket_of(ticket, lease, lock_delay, owner, meta), 0, free_in - kept, token),)
        free_in = 0.0
    waiters = tuple(waiter_of(entries[start : start + 4], now_us / 1000) for start in range(0, len(entries), 4))
    alive = tuple(entry for entry in waiters if entry.expires > 0)
    return View(name, Kind.MUTEX, int(fence or 0), holders, alive, free_in)


def _shared(name: str, reply: Any) -> View:
    now_ms, fence, use = int(reply[0]) / 1000, text_of(reply[1][1]), text_of(reply[1][6]) or Kind.READ_WRITE.value
    entries, blocked_until = [text_of(part) for part in reply[3]], float(reply[1][7] or 0)
    holders, shared_blocked_until = _shared_holders([text_of(part) for part in reply[4]], use, now_ms)
    found = (
        _shared_waiter(ticket, float(order), float(expires), fields, use, now_ms)
        for ticket, order, expires, fields in zip(
            entries[::4], entries[1::4], entries[2::4], entries[3::4], strict=True
        )
    )
    waiters = sorted(
        (entry for entry in found if entry is not None and entry.expires > 0), key=lambda entry: entry.order
    )
    free_in = max(0.0, max(blocked_until, shared_blocked_until) - now_ms) / 1000
    return View(name, mode_of(use).kind, int(fence or 0), holders, tuple(waiters), free_in)


def waiter_of(reply: Any, now_ms: float) -> QueueEntry:
    """Return a waiter for a mutex: its ticket, order, end and fields."""
    ticket, order, expires, fields = (text_of(part) for part in reply)
    _, lease, lock_delay, owner, meta = fields.split(SEPARATOR, 4)
    return QueueEntry(
        ticket_of(ticket, lease, lock_delay, owner, meta), int(float(order)), (float(expires) - now_ms) / 1000
    )


def ticket_of(ticket: str, lease: str, lock_delay: str, owner: str, meta: str) -> Ticket:
    """Return the ticket of a mutex; lease and lock delay are in milliseconds."""
    terms = LeaseTerms(LockMode(), Owner.parse(owner), int(lease or 0) / 1000, int(lock_delay or 0) / 1000, meta)
    return Ticket(ticket, terms)


def text_of(value: Any) -> str:
    """Return a part of a reply as text."""
    return "" if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _shared_holders(parts: Sequence[str], use: str, now_ms: float) -> tuple[tuple[QueueEntry, ...], float]:
    """Read the holders that ``inspect.lua`` shows.

    Returns:
        The holders whose lease has not ended, in order of their tokens, and the server time in ms until which the lock
        delay of the others blocks the name.
    """
    found: list[QueueEntry] = []
    blocked_until = 0.0
    for ticket, expires, fields in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        token, lease, lock_delay, owner, exclusive, upgradeable, permits, meta = fields.split(SEPARATOR, 7)
        if float(expires) <= now_ms:
            blocked_until = max(blocked_until, float(expires) + int(lock_delay)) if int(lock_delay) else blocked_until
            continue
        terms = _shared_terms(use, (lease, lock_delay, owner, exclusive, upgradeable, permits, meta))
        found.append(QueueEntry(Ticket(ticket, terms), 0, _left(float(expires) - now_ms, lease), int(token)))
    return tuple(sorted(found, key=lambda entry: entry.token or 0)), blocked_until


def _shared_waiter(
    ticket: str, order: float, expires: float, fields: str, use: str, now_ms: float
) -> QueueEntry | None:
    """Return a waiter that ``inspect.lua`` shows; None if it is of another kind."""
    values = fields.split(SEPARATOR, 8)
    if len(values) < 9:
        return None
    _, lease, lock_delay, owner, exclusive, upgradeable, permits, alongside, meta = values
    terms = _shared_terms(use, (lease, lock_delay, owner, exclusive, upgradeable, permits, meta))
    arrival = int(order + FIRST if order < 0 else order)
    return QueueEntry(Ticket(ticket, terms, alongside), arrival, _left(expires - now_ms, lease))


def _shared_terms(use: str, values: tuple[str, ...]) -> LeaseTerms:
    lease, lock_delay, owner, exclusive, upgradeable, permits, meta = values
    name = mode_of(use)
    mode = LockMode(name.kind, exclusive == "1", upgradeable == "1", int(permits), name.limit)
    return LeaseTerms(mode, Owner.parse(owner), int(lease) / 1000, int(lock_delay) / 1000, meta)


def _left(milliseconds: float, lease: str) -> float:
    return min(milliseconds, int(lease)) / 1000  # an expiry is rounded up to a whole millisecond

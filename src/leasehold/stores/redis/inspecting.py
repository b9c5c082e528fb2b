"""From what the server shows of a name to what people see."""

from __future__ import annotations

from typing import Any

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket, View
from leasehold.stores.redis import shared

SEPARATOR = "\x1f"


def view(name: str, reply: Any) -> View:
    """Read the reply of ``scripts/look.lua``."""
    now_us, fields, blocked, entries = int(reply[0]), [_text(field) for field in reply[1]], int(reply[2]), reply[3]
    ticket, fence, lease, lock_delay, owner, meta, use, _ = fields
    if use != Kind.MUTEX and (use or reply[4]):
        return _shared(name, reply)
    free_in = max(blocked, 0) / 1000
    holders: tuple[QueueEntry, ...] = ()
    kept = int(lock_delay or 0) / 1000
    if ticket and free_in > kept:
        token = int(fence or 0)
        holders = (QueueEntry(_ticket(ticket, lease, lock_delay, owner, meta), 0, free_in - kept, token),)
        free_in = 0.0
    waiters = tuple(_waiter(entries[start : start + 4], now_us / 1000) for start in range(0, len(entries), 4))
    alive = tuple(entry for entry in waiters if entry.expires > 0)
    return View(name, Kind.MUTEX, int(fence or 0), holders, alive, free_in)


def _shared(name: str, reply: Any) -> View:
    now_ms, fence, use = int(reply[0]) / 1000, _text(reply[1][1]), _text(reply[1][6]) or Kind.READ_WRITE.value
    entries, blocked_until = [_text(part) for part in reply[3]], float(reply[1][7] or 0)
    holders, shared_blocked_until = shared.holders([_text(part) for part in reply[4]], use, now_ms)
    found = (
        shared.waiter(ticket, float(order), float(expires), fields, use, now_ms)
        for ticket, order, expires, fields in zip(
            entries[::4], entries[1::4], entries[2::4], entries[3::4], strict=True
        )
    )
    waiters = sorted(
        (entry for entry in found if entry is not None and entry.expires > 0), key=lambda entry: entry.order
    )
    free_in = max(0.0, max(blocked_until, shared_blocked_until) - now_ms) / 1000
    return View(name, shared.rule_of(use).kind, int(fence or 0), holders, tuple(waiters), free_in)


def _waiter(reply: Any, now_ms: float) -> QueueEntry:
    ticket, order, expires, fields = (_text(part) for part in reply)
    _, lease, lock_delay, owner, meta = fields.split(SEPARATOR, 4)
    return QueueEntry(
        _ticket(ticket, lease, lock_delay, owner, meta), int(float(order)), (float(expires) - now_ms) / 1000
    )


def _ticket(ticket: str, lease: str, lock_delay: str, owner: str, meta: str) -> Ticket:
    terms = LeaseTerms(LockMode(), Owner.parse(owner), int(lease or 0) / 1000, int(lock_delay or 0) / 1000, meta)
    return Ticket(ticket, terms)


def _text(value: Any) -> str:
    return "" if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

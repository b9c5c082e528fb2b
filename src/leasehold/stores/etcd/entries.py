"""The keys of a queue: what is stored under the key of a ticket, and which tickets may hold. Pure.

Keys of other programs are read, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket
from leasehold._rules import Enter, Queue, conflicts, decide, successors
from leasehold.stores.etcd.keys import Json, key_of, unb64

FOREIGN = "lease"
"""Host shown for a holder that does not name itself, as Go's Mutex: only its lease is known."""

SHORT = 4096
"""Bytes of a value up to which the ticket in it is kept: one of ours is shorter, and another program's may be large."""


@dataclass(frozen=True, slots=True)
class QueueKey:
    """A key of a queue, with the ticket that it belongs to.

    Attributes:
        key: the key.
        created: its create revision: the order of arrival.
        written: its last modification revision. Once a shared lock is held, this is the revision of its grant.
        lease: the lease under which it lives, 0 for none.
        ticket: the ticket; for a key of another program one with what is known.
        holds: whether its value says that it holds. In a mutex the first key holds, whatever the values say.
    """

    key: str
    created: int
    written: int
    lease: int
    ticket: Ticket
    holds: bool

    @property
    def mode(self) -> LockMode:
        """The mode that the ticket requests."""
        return self.ticket.terms.mode


def value(ticket: Ticket, length: float, *, holds: bool) -> bytes:
    """Return the value of a ticket's key: JSON, readable for people."""
    mode, terms = ticket.terms.mode, ticket.terms
    fields: Json = {"kind": mode.kind.value, "owner": str(terms.owner), "lease": length}
    if terms.meta:
        fields["meta"] = terms.meta
    if mode.fair:
        fields["fair"] = True
    if mode.kind is Kind.READ_WRITE:
        fields |= {"mode": "w" if mode.exclusive else "u" if mode.upgradeable else "r", "alongside": ticket.alongside}
    if mode.kind is Kind.SEMAPHORE:
        fields |= {"permits": mode.permits, "limit": mode.limit}
    if mode.kind is not Kind.MUTEX:
        fields["holds"] = holds
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def read_key(kv: Json) -> QueueKey:
    """Read a key and its value."""
    key = key_of(kv)
    lease = int(kv.get("lease", 0))
    stored = unb64(kv.get("value", ""))
    ticket, holds = (_ticket if len(stored) <= SHORT else _read_ticket)(key.rpartition("/")[2], lease, stored)
    return QueueKey(key, int(kv["create_revision"]), int(kv["mod_revision"]), lease, ticket, holds)


def read_keys(kvs: Sequence[Json]) -> list[QueueKey]:
    """Read keys and values, in order of arrival."""
    return sorted(map(read_key, kvs), key=lambda one: one.created)


def _read_ticket(entry: str, lease: int, stored: bytes) -> tuple[Ticket, bool]:
    try:
        fields = cast(dict[str, Any], json.loads(stored))
        mode = _mode(fields)
        terms = LeaseTerms(mode, Owner.parse(fields["owner"]), float(fields["lease"]), meta=str(fields.get("meta", "")))
        _, dash, ticket = entry.partition("-")
        if not dash:
            raise ValueError("not a key of ours")
        return Ticket(ticket, terms, str(fields.get("alongside", ""))), bool(fields.get("holds"))
    except (ValueError, KeyError, TypeError, AttributeError):  # of another program: an election stores its proposal
        return Ticket(entry, LeaseTerms(LockMode(), Owner(FOREIGN, 0, f"{lease:x}"), math.inf)), False


_ticket = lru_cache(maxsize=4096)(_read_ticket)  # each request reads the whole queue, in which little has changed


def _mode(fields: dict[str, Any]) -> LockMode:
    mode = fields.get("mode", "w")
    return LockMode(
        Kind(fields["kind"]),
        exclusive=mode == "w",
        upgradeable=mode == "u",
        permits=int(fields.get("permits", 1)),
        limit=int(fields.get("limit", 1)),
        fair=bool(fields.get("fair")),
    )


# --- shared locks ------------------------------------------------------------------------------------------------


def queue(name: str, present: Sequence[QueueKey]) -> Queue:
    """Return the queue of a shared lock as a value for the rules. No entry expires here: etcd deletes expired keys."""
    holders = [QueueEntry(one.ticket, one.created, math.inf, one.written) for one in present if one.holds]
    waiters = [QueueEntry(one.ticket, one.created, math.inf) for one in present if not one.holds]
    return Queue(name, holders=tuple(holders), waiters=tuple(waiters))


def may_overtake(ticket: Ticket) -> bool:
    """Return whether a ticket of a shared lock may overtake waiters."""
    return not ticket.terms.mode.fair or ticket.alongside != ""


def is_its_turn(present: Sequence[QueueKey], own: QueueKey) -> bool:
    """Return whether a waiter in the queue may enter: it conflicts with no holder, and with no waiter ahead of it."""
    if may_overtake(own.ticket):
        return False
    # Not an older key of the same ticket: a former leader may have said that its session has ended.
    others = [one for one in present if one.ticket.id != own.ticket.id]
    return not conflicts(own.mode, [one.mode for one in others if one.holds or one.created < own.created])


def may_enter(name: str, present: Sequence[QueueKey], ticket: Ticket) -> bool:
    """Return whether a ticket may hold, given all keys: by itself, or together with the waiters ahead of it."""
    in_queue = queue(name, present)
    if isinstance(decide(in_queue, ticket, 0.0), Enter):
        return True
    return any(entry.ticket.id == ticket.id for entry in successors(in_queue, 0.0))


def blockers(present: Sequence[QueueKey], ticket: Ticket) -> list[QueueKey]:
    """Return the keys of which one must be deleted before the ticket can enter: few, so that few wake at a deletion.

    A fair ticket waits for those ahead of it, too, which enter before it: a writer for the last one ahead, as in a
    queue. A ticket that may overtake enters as soon as the holders leave room, so it waits for a holder first.
    """
    mode, overtakes = ticket.terms.mode, may_overtake(ticket)
    others = [one for one in present if one.ticket.id not in (ticket.id, ticket.alongside)]
    arrived = next((one.created for one in present if one.ticket.id == ticket.id), math.inf)
    if mode.kind is Kind.SEMAPHORE:
        before = [one for one in others if one.holds or one.created < arrived]
        return before if overtakes else _blocking_permits(before, mode)
    against = [one for one in others if conflicts(mode, [one.mode])]
    # A reader or a writer enters when *all* keys that conflict with it are gone, so it waits for one of them.
    holding, ahead = [one for one in against if one.holds], [one for one in against if one.created < arrived]
    if mode.exclusive and not overtakes:
        holding, ahead = ahead, holding
    held = {one.ticket.id for one in present if one.holds}
    # Last, a waiter alongside a ticket of its own that holds: it is ahead of all others as long as that holds.
    return (holding or ahead or [one for one in against if one.ticket.alongside in held])[-1:] or others


def _blocking_permits(before: list[QueueKey], mode: LockMode) -> list[QueueKey]:
    """Return those, of the holders and the waiters ahead of a fair ticket, of which one must be deleted.

    It enters when all of them and it itself have room. So as many of their permits must be given back as they have too
    many together, and all of these but one may be ignored: those that arrived first, since they are deleted first.
    """
    too_many = sum(one.mode.permits for one in before) + mode.permits - mode.limit
    for at, one in enumerate(before):
        too_many -= one.mode.permits
        if too_many <= 0:
            return before[at:]
    return before

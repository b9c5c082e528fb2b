"""What is stored under the key of a ticket, and who stands there in which order, holders of other programs included."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket
from leasehold._rules import Enter, Queue, conflicts, decide, successors
from leasehold.stores.etcd.keys import Json, unb64

FOREIGN = "lease"
"""Host shown for a holder that did not say who it is, as Go's Mutex: its lease is all that is known."""


@dataclass(frozen=True, slots=True)
class Place:
    """A key of a queue: who stands there.

    Attributes:
        key: the key.
        created: its create revision: the order of arrival.
        written: its last revision: for a shared lock the grant, once it holds.
        lease: the lease under which it lives, 0 for none.
        ticket: who; made up for holders of other programs.
        holds: whether it says that it holds. A mutex does not: its first one does.

    """

    key: str
    created: int
    written: int
    lease: int
    ticket: Ticket
    holds: bool

    @property
    def mode(self) -> LockMode:
        """What it asks for."""
        return self.ticket.terms.mode


def value(ticket: Ticket, length: float, *, holds: bool) -> bytes:
    """Return what is stored for a ticket: JSON, readable for people."""
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


def place(kv: Json) -> Place:
    """Read a key and its value."""
    key = unb64(kv["key"]).decode("utf-8", "replace")
    lease = int(kv.get("lease", 0))
    ticket, holds = _ticket(key.rpartition("/")[2], lease, unb64(kv.get("value", "")))
    return Place(key, int(kv["create_revision"]), int(kv["mod_revision"]), lease, ticket, holds)


def places(kvs: Sequence[Json]) -> list[Place]:
    """Read keys and values, in order of arrival."""
    return sorted(map(place, kvs), key=lambda one: one.created)


def _ticket(entry: str, lease: int, stored: bytes) -> tuple[Ticket, bool]:
    try:
        fields = cast(dict[str, Any], json.loads(stored))
        mode = _mode(fields)
        terms = LeaseTerms(mode, Owner.parse(fields["owner"]), float(fields["lease"]), meta=str(fields.get("meta", "")))
        _, dash, ticket = entry.partition("-")
        if not dash:
            raise ValueError("not a key of ours")
        return Ticket(ticket, terms, str(fields.get("alongside", ""))), bool(fields.get("holds"))
    except (ValueError, KeyError, TypeError, AttributeError):  # another program's: an election has its proposal here
        return Ticket(entry, LeaseTerms(LockMode(), Owner(FOREIGN, 0, f"{lease:x}"), math.inf)), False


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


def queue(name: str, there: Sequence[Place]) -> Queue:
    """Return the queue of a shared lock, as the rules see it. Nothing in it expires: etcd takes out what has."""
    entries = [
        (one, QueueEntry(one.ticket, one.created, math.inf, token=one.written if one.holds else None)) for one in there
    ]
    holders = tuple(entry for one, entry in entries if one.holds)
    return Queue(name, holders=holders, waiters=tuple(entry for one, entry in entries if not one.holds))


def passes(ticket: Ticket) -> bool:
    """Say whether a ticket of a shared lock does not wait its turn: it passes those who wait, if it can enter."""
    return not ticket.terms.mode.fair or ticket.alongside != ""


def is_its_turn(there: Sequence[Place], own: Place) -> bool:
    """Say whether one who waits its turn may enter: it conflicts with nobody who holds, and with nobody before it."""
    if passes(own.ticket):
        return False
    others = [one.mode for one in there if one is not own and (one.holds or one.created < own.created)]
    return not conflicts(own.mode, others)


def may_enter(name: str, there: Sequence[Place], ticket: Ticket) -> bool:
    """Say whether a ticket may hold, given all who are there: by itself, or together with those ahead of it."""
    line = queue(name, there)
    if isinstance(decide(line, ticket, 0.0), Enter):
        return True
    return any(entry.ticket.id == ticket.id for entry in successors(line, 0.0))


def blockers(there: Sequence[Place], ticket: Ticket) -> list[Place]:
    """Return those of whom one must leave before the ticket can enter.

    Before a reader or a writer enters, *all* who conflict with it must leave, so one of them is enough to wait for. A
    semaphore's ticket may enter when any of the others leaves.
    """
    others = [one for one in there if one.ticket.id not in (ticket.id, ticket.alongside)]
    mine = next((one.created for one in there if one.ticket.id == ticket.id), math.inf)
    if ticket.terms.mode.kind is Kind.SEMAPHORE:
        return [one for one in others if one.holds or one.created < mine]
    against = [one for one in others if conflicts(ticket.terms.mode, [one.mode])]
    holding = [one for one in against if one.holds]
    held = {one.ticket.id for one in there if one.holds}
    # Who waits beside a ticket of its own that holds is before all others, whenever it came.
    ahead = [one for one in against if one.created < mine or one.ticket.alongside in held]
    return (holding or ahead)[-1:] or others

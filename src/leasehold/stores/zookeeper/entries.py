"""The data of a contender's node, and queue entries made of it.

The data is one line of JSON, at most some 1.5 KiB, for people and for rules that Curator does not have. Curator does
not read it, and writes an address as data.
"""

from __future__ import annotations

import json
from typing import Any, cast

from leasehold._model import META_LIMIT, Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket
from leasehold.stores.zookeeper.connection.requests import Node
from leasehold.stores.zookeeper.nodes import Contender, Mark

FOREIGN_LEASE = 30.0
"""Seconds shown as the lease of a holder whose node has none."""


def spell(ticket: Ticket) -> bytes:
    """Encode a ticket's terms."""
    terms, mode = ticket.terms, ticket.terms.mode
    fields: dict[str, Any] = {"owner": str(terms.owner), "lease": terms.lease}
    if terms.meta:
        fields["meta"] = terms.meta
    if mode.fair:
        fields["fair"] = True
    if mode.kind is Kind.SEMAPHORE:
        fields.update(permits=mode.permits, limit=mode.limit)
    if ticket.alongside:
        fields["alongside"] = ticket.alongside
    return json.dumps(fields, ensure_ascii=False).encode()


def fields_of(data: bytes) -> dict[str, Any]:
    """Decode a node's data; the data of another program yields an owner at most."""
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    found = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    if isinstance(found.get("owner"), str):
        return found
    text = data[:64].decode(errors="replace")
    return {"owner": text if text.isprintable() and text else "another client"}


def owner_of(data: bytes) -> Owner:
    """Return the owner in the data."""
    return Owner.parse(str(fields_of(data)["owner"])[:256])


def limit_of(data: bytes) -> int | None:
    """Return the limit in the data of a permit's node; None if it is not ours."""
    limit = fields_of(data).get("limit")
    return limit if isinstance(limit, int) and limit > 0 else None


def entry(
    one: Contender, node: Node, order: int, *, holds: bool, limit: int | None = None, permits: int = 1
) -> QueueEntry:
    """Return a contender as a queue entry; one of a semaphore has a ``limit``, which may be `UNKNOWN`.

    The time left of a session is not known. The entry has the lease, which its client renews while it lives.
    """
    fields = fields_of(node.data)
    shared = one.mark in (Mark.READER, Mark.WRITER)
    mode = LockMode(
        Kind.SEMAPHORE if limit is not None else Kind.READ_WRITE if shared else Kind.MUTEX,
        exclusive=one.mark is not Mark.READER,
        upgradeable=one.up and one.mark is Mark.READER,
        permits=permits,
        limit=1 if limit is None else limit,
        fair=bool(fields.get("fair")),
    )
    lease, meta = fields.get("lease"), fields.get("meta", "")
    seconds = float(lease) if isinstance(lease, int | float) and 0 < lease < 1e9 else FOREIGN_LEASE
    meta = meta if isinstance(meta, str) and len(meta) <= META_LIMIT else ""
    terms = LeaseTerms(mode, owner_of(node.data), seconds, meta=meta)
    ticket = Ticket(one.ticket or one.child, terms, str(fields.get("alongside", "")))
    token = node.mzxid if mode.kind is Kind.READ_WRITE else node.czxid
    return QueueEntry(ticket, order, seconds, token if holds else None)

"""Statements of ``mode=session`` that are the same on all servers.

``key`` is the namespace and the name under which the rows of this mode are stored. ``now`` is the server's clock in its
dialect.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.stores._sql.dialect import ID, places
from leasehold.stores._sql.queue_snapshot import Key
from leasehold.stores._sql.transport import Statement


def holder(key: Key) -> Statement:
    """Return what reads the owner that is stored as holder."""
    return Statement(f"SELECT owner FROM leasehold_entry WHERE name_id = {ID} AND place = 0", key)


def hint_of(key: Key, ticket: str) -> Statement:
    """Return what reads hint and place of a ticket's entry."""
    return Statement(f"SELECT hint, place FROM leasehold_entry WHERE name_id = {ID} AND ticket = $3", (*key, ticket))


def remove_entry(key: Key, ticket: str) -> Statement:
    """Return what removes the entry of a ticket."""
    return Statement(f"DELETE FROM leasehold_entry WHERE name_id = {ID} AND ticket = $3", (*key, ticket))


def renew_entries(now: str, tickets: Sequence[str]) -> Statement:
    """Return what sets the expiry of these tickets' entries to one lease from now."""
    text = f"UPDATE leasehold_entry SET expires = {now} + lease WHERE ticket IN ({places(1, len(tickets))})"
    return Statement(text, tuple(tickets))

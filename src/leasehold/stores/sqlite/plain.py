"""The plain case: a name without entries is acquired, and one that has no entry but ours is released.

Nearly all acquires and releases are plain. `steps` reads a queue as objects, computes the queue afterwards, and writes
what differs. Where there is no queue, these few statements do the same, in the same transaction. If a call is not
plain, they change nothing, and `steps` does it. Its steps are the specification: a test plays random histories in both
ways.
"""

from __future__ import annotations

import sqlite3

from leasehold._model import QueueEntry, Ticket
from leasehold._rules import conflicts, next_token
from leasehold.stores._sql.queue_snapshot import USED_TO_WITHIN, row_of
from leasehold.stores.sqlite.machine import Process
from leasehold.stores.sqlite.rows import ADD_ENTRY, Key, ns

FIND_FREE = """
    SELECT id, fence FROM name WHERE space = ? AND name = ? AND blocked_until <= ?
    AND NOT EXISTS (SELECT 1 FROM entry WHERE name_id = name.id)
"""
TAKE = "UPDATE name SET fence = ?, used = ? WHERE id = ?"
DROP_ONLY_ENTRY = """
    DELETE FROM entry WHERE ticket = ? AND name_id = (SELECT id FROM name WHERE space = ? AND name = ? AND used >= ?)
    AND NOT EXISTS (SELECT 1 FROM entry AS other WHERE other.name_id = entry.name_id AND other.ticket <> entry.ticket)
"""


def acquire(db: sqlite3.Connection, key: Key, ticket: Ticket, now: float, floor: int, me: Process) -> int | None:
    """Acquire for process ``me`` a name that has a row, but no entry; return the token, or None if it is not plain."""
    row = db.execute(FIND_FREE, (*key, ns(now))).fetchone()
    if row is None or conflicts(ticket.terms.mode, ()):
        return None
    name_id, fence = row
    token = next_token(fence, floor)
    db.execute(TAKE, (token, ns(now), name_id))
    entry = QueueEntry(ticket, 0, now + ticket.terms.lease, token)
    db.execute(ADD_ENTRY, (name_id, *row_of(entry, 0, ""), me.pid, me.started, me.pids))
    return token


def release(db: sqlite3.Connection, key: Key, ticket: str, now: float) -> bool:
    """Remove the only entry of a name; return whether that was plain."""
    return db.execute(DROP_ONLY_ENTRY, (ticket, *key, ns(now) - USED_TO_WITHIN)).rowcount == 1

"""The plain case: a free name is acquired as a plain lock, and a name without waiters is released.

Nearly all acquires and releases of plain locks are such. `steps` reads a queue as objects, computes the queue
afterwards, and writes what differs. Where there is no queue, these few statements do the same, in the same transaction:
they write one row, that of the name, so a commit writes one page to the disk. If a call is not plain, they change
nothing, and `steps` does it. Its steps are the specification: a test runs random histories both ways.
"""

from __future__ import annotations

import sqlite3

from leasehold._model import Ticket
from leasehold._rules import next_token
from leasehold.stores._sql.row_holder import is_plain
from leasehold.stores.sqlite.machine import Process
from leasehold.stores.sqlite.rows import NO_HOLDER, SET_HOLDER, Key, ns

NOBODY_WAITS = "NOT EXISTS (SELECT 1 FROM entry WHERE name_id = name.id)"
FIND_FREE = f"""
    SELECT id, fence FROM name WHERE space = ? AND name = ? AND holder = '' AND blocked_until <= ? AND {NOBODY_WAITS}
"""
TAKE = f"UPDATE name SET fence = ?, used = ?, {SET_HOLDER} WHERE id = ?"
FREE = f"UPDATE name SET used = ?, {SET_HOLDER} WHERE space = ? AND name = ? AND holder = ? AND {NOBODY_WAITS}"


def acquire(db: sqlite3.Connection, key: Key, ticket: Ticket, now: float, floor: int, me: Process) -> int | None:
    """Acquire for process ``me`` a free name that has a row; return the token, or None if it is not plain."""
    if not is_plain(ticket):
        return None
    row = db.execute(FIND_FREE, (*key, ns(now))).fetchone()
    if row is None:
        return None
    name_id, fence = row
    token, terms = next_token(fence, floor), ticket.terms
    holder = (
        *(ticket.id, token, ns(now + terms.lease), terms.mode.fair, ns(terms.lease), ns(terms.lock_delay)),
        *(str(terms.owner), terms.meta, me.pid, me.started, me.pids),
    )
    db.execute(TAKE, (token, ns(now), *holder, name_id))
    return token


def release(db: sqlite3.Connection, key: Key, ticket: Ticket, now: float) -> bool:
    """Remove the holder of a name without entries; return whether that was plain."""
    return is_plain(ticket) and db.execute(FREE, (ns(now), *NO_HOLDER, *key, ticket.id)).rowcount == 1

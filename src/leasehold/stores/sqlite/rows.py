"""Queues and cells in the file: read what decides, write back what changed (see `_sql.queue_snapshot`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from leasehold._model import Cell
from leasehold._rules import Queue
from leasehold.stores._common.cells import EMPTY
from leasehold.stores._sql import queue_snapshot, row_holder
from leasehold.stores._sql.queue_snapshot import (
    ALL,
    COLUMNS,
    WINDOW,
    Added,
    Changed,
    EntryRow,
    Key,
    QueueSnapshot,
    above,
    ns,
    row_of,
)
from leasehold.stores.sqlite.machine import Process

__all__ = ["ALL", "WINDOW", "Key", "QueueSnapshot", "ns"]

ENTRY = f"{COLUMNS}, pid, started, pids"
HOLDER = f"{row_holder.HOLDER}, holder_pid, holder_started, holder_pids"
"""The columns of the holder in a name's row, with its process."""
NO_HOLDER = (*row_holder.NOBODY, 0, 0, "")
"""What they are without one."""
SET_HOLDER = f"({HOLDER}) = ({', '.join('?' * len(NO_HOLDER))})"
FIND_NAME = f"SELECT id, fence, blocked_until, used, {HOLDER} FROM name WHERE space = ? AND name = ?"
ADD_NAME = "INSERT INTO name (space, name, fence, blocked_until, used) VALUES (?, ?, ?, ?, ?)"
SET_NAME = f"UPDATE name SET fence = ?, blocked_until = ?, used = ?, {SET_HOLDER} WHERE id = ?"
FIRST_ENTRIES = f"""
    SELECT * FROM (SELECT {ENTRY} FROM entry WHERE name_id = ? AND place = 0)
    UNION ALL SELECT * FROM (SELECT {ENTRY} FROM entry WHERE name_id = ? AND place > 0 ORDER BY place LIMIT ?)
"""
ALONGSIDE_ENTRIES = f"SELECT {ENTRY} FROM entry WHERE name_id = ? AND place > 0 AND alongside <> ''"
LAST_ENTRY = f"SELECT {ENTRY} FROM entry WHERE name_id = ? AND place > 0 ORDER BY place DESC LIMIT 1"
OWN_ENTRY = f"SELECT {ENTRY} FROM entry WHERE ticket = ? AND name_id = ?"
ADD_ENTRY = f"INSERT INTO entry (name_id, {ENTRY}) VALUES ({', '.join('?' * 20)})"
SET_ENTRY = "UPDATE entry SET place = ?, token = ?, expires = ?, hint = ? WHERE ticket = ? AND name_id = ?"
DROP_ENTRY = "DELETE FROM entry WHERE ticket = ? AND name_id = ?"
FIND_EXPIRY = """
    SELECT holder_token, holder_expires, id FROM name WHERE holder = ? AND space = ? AND name = ?
    UNION ALL SELECT entry.token, entry.expires, name.id FROM entry JOIN name ON name.id = entry.name_id
    WHERE entry.ticket = ? AND name.space = ? AND name.name = ?
"""
SET_HOLDERS_EXPIRY = "UPDATE name SET holder_expires = ? WHERE holder = ? AND id = ?"
SET_EXPIRY = "UPDATE entry SET expires = ? WHERE ticket = ? AND name_id = ?"
NAMES_IN_USE = """
    SELECT name FROM name WHERE space = ? AND name >= ? AND name < ?
    AND (holder <> '' OR blocked_until > ? OR EXISTS (SELECT 1 FROM entry WHERE name_id = name.id)) ORDER BY name
"""
FIND_CELL = "SELECT value, version, fence FROM cell WHERE space = ? AND name = ? AND expires > ?"
PUT_CELL = """
    INSERT INTO cell (space, name, value, version, fence, expires, ttl) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, version = excluded.version, fence = excluded.fence,
    expires = excluded.expires, ttl = excluded.ttl
"""


def read(db: sqlite3.Connection, key: Key, ticket: str | None, now: float, window: int) -> QueueSnapshot:
    """Read the name's row, all holders, the first ``window`` waiters, the last one, and the entry of ``ticket``."""
    name = key[1].decode("utf-8", "surrogatepass")
    row = db.execute(FIND_NAME, key).fetchone()
    if row is None:
        return QueueSnapshot(None, Queue(name))
    first: list[EntryRow] = db.execute(FIRST_ENTRIES, (row[0], row[0], window)).fetchall()
    more: list[EntryRow] | None = None
    if sum(1 for one in first if one[1]) >= window:
        more = db.execute(LAST_ENTRY, (row[0],)).fetchall() + db.execute(OWN_ENTRY, (ticket, row[0])).fetchall()
        more += db.execute(ALONGSIDE_ENTRIES, (row[0],)).fetchall()
    holder, process = row[4:-3], row[-3:]
    first = [*((*one, *process) for one in row_holder.as_entries(holder)), *first]
    snapshot = queue_snapshot.snapshot_of(name, row[:4], first, more, now)
    snapshot.row_holder = holder[0]
    return snapshot


def write(
    db: sqlite3.Connection, key: Key, snapshot: QueueSnapshot, after: Queue, now: float, me: Process, hint: str
) -> None:
    """Write what differs from the snapshot. New entries get the process ``me`` and the hint."""
    if snapshot.row is None and not after.entries():
        return
    changes = row_holder.changes(snapshot, queue_snapshot.differences(snapshot, after, now, hint))
    name_id = snapshot.row[0] if snapshot.row else int(db.execute(ADD_NAME, (*key, 0, 0, 0)).lastrowid or 0)
    mine = (me.pid, me.started, me.pids)
    if changes.name_differs or queue_snapshot.name_differs(snapshot, after, now):
        process = snapshot.own.get(changes.holder, mine) if changes.holder else NO_HOLDER[-3:]
        holder = (*row_holder.columns_of(after, changes.holder), *process)
        db.execute(SET_NAME, (after.fence, ns(after.blocked_until), ns(now), *holder, name_id))
    for one in changes.of_entries:
        if isinstance(one, Added):
            db.execute(ADD_ENTRY, (name_id, *row_of(one.entry, one.place, hint), *mine))
        elif isinstance(one, Changed):
            entry = one.entry
            db.execute(SET_ENTRY, (one.place, entry.token, ns(entry.expires), one.hint, entry.ticket.id, name_id))
        else:
            db.execute(DROP_ENTRY, (one.ticket, name_id))


def names(db: sqlite3.Connection, space: bytes, prefix: bytes, now: float, *, exact: bool) -> Iterator[bytes]:
    """Yield the names in use that begin with ``prefix``, or are it."""
    end = prefix + b"\0" if exact else above(prefix)
    for (name,) in db.execute(NAMES_IN_USE, (space, prefix, end, ns(now))):
        yield name


def expiry(db: sqlite3.Connection, key: Key, ticket: str) -> tuple[int | None, float, int] | None:
    """Return token, expiry in seconds and the name's row id of a ticket; None if it neither holds nor waits."""
    row = db.execute(FIND_EXPIRY, 2 * (ticket, *key)).fetchone()
    return None if row is None else (row[0], row[1] / 1e9, row[2])


def set_expiry(db: sqlite3.Connection, name_id: int, ticket: str, expires: float) -> None:
    """Write the expiry, in seconds, of a ticket that holds or waits."""
    for statement in (SET_HOLDERS_EXPIRY, SET_EXPIRY):
        if db.execute(statement, (ns(expires), ticket, name_id)).rowcount:
            return


def read_cell(db: sqlite3.Connection, key: Key, now: float) -> Cell:
    """Return the cell; an expired one is empty."""
    row = db.execute(FIND_CELL, (*key, ns(now))).fetchone()
    return EMPTY if row is None else Cell(row[0], row[1], row[2])


def write_cell(db: sqlite3.Connection, key: Key, cell: Cell, now: float, ttl: float) -> None:
    """Write the cell, to live so many seconds from now."""
    db.execute(PUT_CELL, (*key, cell.value, cell.version, cell.fence, ns(now + ttl), ns(ttl)))

"""Queues and cells in the file: read what decides, write back what changed (see `_sql.queue_snapshot`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field

from leasehold._model import Cell
from leasehold._rules import Queue
from leasehold.stores._common.cells import EMPTY
from leasehold.stores._sql import queue_snapshot
from leasehold.stores._sql.queue_snapshot import (
    ALL,
    COLUMNS,
    WINDOW,
    Added,
    Changed,
    EntryRow,
    Key,
    above,
    ns,
    row_of,
)
from leasehold.stores.sqlite.machine import Process

__all__ = ["ALL", "WINDOW", "Key", "QueueSnapshot", "ns"]

ENTRY = f"{COLUMNS}, pid, started, pids"
FIND_NAME = "SELECT id, fence, blocked_until, used FROM name WHERE space = ? AND name = ?"
ADD_NAME = "INSERT INTO name (space, name, fence, blocked_until, used) VALUES (?, ?, ?, ?, ?)"
SET_NAME = "UPDATE name SET fence = ?, blocked_until = ?, used = ? WHERE id = ?"
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
    SELECT entry.token, entry.expires, name.id FROM entry JOIN name ON name.id = entry.name_id
    WHERE entry.ticket = ? AND name.space = ? AND name.name = ?
"""
SET_EXPIRY = "UPDATE entry SET expires = ? WHERE ticket = ? AND name_id = ?"
NAMES_IN_USE = """
    SELECT name FROM name WHERE space = ? AND name >= ? AND name < ?
    AND (blocked_until > ? OR EXISTS (SELECT 1 FROM entry WHERE name_id = name.id)) ORDER BY name
"""
FIND_CELL = "SELECT value, version, fence FROM cell WHERE space = ? AND name = ? AND expires > ?"
PUT_CELL = """
    INSERT INTO cell (space, name, value, version, fence, expires, ttl) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, version = excluded.version, fence = excluded.fence,
    expires = excluded.expires, ttl = excluded.ttl
"""


@dataclass(slots=True)
class QueueSnapshot(queue_snapshot.QueueSnapshot):
    """The queue of one name as it was read, with the process of each entry."""

    processes: dict[str, Process] = field(default_factory=dict[str, Process])


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
    snapshot = queue_snapshot.snapshot_of(name, row, first, more, now)
    processes = {one[0]: Process(one[16], one[17], one[18]) for one in (*first, *(more or ()))}
    return QueueSnapshot(
        snapshot.row, snapshot.queue, snapshot.whole, snapshot.last, snapshot.window, snapshot.hints, processes
    )


def write(
    db: sqlite3.Connection, key: Key, snapshot: QueueSnapshot, after: Queue, now: float, me: Process, hint: str
) -> None:
    """Write what differs from the snapshot. New entries get the process ``me`` and the hint."""
    if snapshot.row is None and not after.entries():
        return
    name_id = _write_name(db, key, snapshot, after, now)
    for one in queue_snapshot.differences(snapshot, after, now, hint):
        if isinstance(one, Added):
            db.execute(ADD_ENTRY, (name_id, *row_of(one.entry, one.place, hint), me.pid, me.started, me.pids))
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
    """Return token, expiry in seconds and the name's row id of an entry; None if there is no such entry."""
    row = db.execute(FIND_EXPIRY, (ticket, *key)).fetchone()
    return None if row is None else (row[0], row[1] / 1e9, row[2])


def read_cell(db: sqlite3.Connection, key: Key, now: float) -> Cell:
    """Return the cell; an expired one is empty."""
    row = db.execute(FIND_CELL, (*key, ns(now))).fetchone()
    return EMPTY if row is None else Cell(row[0], row[1], row[2])


def write_cell(db: sqlite3.Connection, key: Key, cell: Cell, now: float, ttl: float) -> None:
    """Write the cell, to live so many seconds from now."""
    db.execute(PUT_CELL, (*key, cell.value, cell.version, cell.fence, ns(now + ttl), ns(ttl)))


def _write_name(db: sqlite3.Connection, key: Key, snapshot: QueueSnapshot, after: Queue, now: float) -> int:
    blocked_until = ns(after.blocked_until)
    if snapshot.row is None:
        return int(db.execute(ADD_NAME, (*key, after.fence, blocked_until, ns(now))).lastrowid or 0)
    if queue_snapshot.name_differs(snapshot, after, now):
        db.execute(SET_NAME, (after.fence, blocked_until, ns(now), snapshot.row[0]))
    return snapshot.row[0]

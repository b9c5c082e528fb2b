"""Queues and cells in the file: read what decides, write back what changed (see `stores.sql.pages`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from leasehold._model import Cell, Seat
from leasehold._rules import Queue
from leasehold.stores._common.cells import EMPTY
from leasehold.stores._common.queues import Alive, Step
from leasehold.stores._sql import queue_snapshot
from leasehold.stores._sql.queue_snapshot import (
    ALL,
    COLUMNS,
    WINDOW,
    Added,
    Changed,
    Key,
    SeatRow,
    above,
    ns,
    row_of,
)
from leasehold.stores.sqlite.machine import Machine, Process

__all__ = ["ALL", "WINDOW", "Key", "Page", "ns"]

SEAT = f"{COLUMNS}, pid, started, pids"
FIND_NAME = "SELECT id, fence, barred, used FROM name WHERE space = ? AND name = ?"
ADD_NAME = "INSERT INTO name (space, name, fence, barred, used) VALUES (?, ?, ?, ?, ?)"
SET_NAME = "UPDATE name SET fence = ?, barred = ?, used = ? WHERE id = ?"
FIRST_SEATS = f"""
    SELECT * FROM (SELECT {SEAT} FROM seat WHERE name_id = ? AND place = 0)
    UNION ALL SELECT * FROM (SELECT {SEAT} FROM seat WHERE name_id = ? AND place > 0 ORDER BY place LIMIT ?)
"""
BESIDE_SEATS = f"SELECT {SEAT} FROM seat WHERE name_id = ? AND place > 0 AND beside <> ''"
LAST_SEAT = f"SELECT {SEAT} FROM seat WHERE name_id = ? AND place > 0 ORDER BY place DESC LIMIT 1"
OWN_SEAT = f"SELECT {SEAT} FROM seat WHERE ticket = ? AND name_id = ?"
ADD_SEAT = f"INSERT INTO seat (name_id, {SEAT}) VALUES ({', '.join('?' * 20)})"
SET_SEAT = "UPDATE seat SET place = ?, token = ?, expires = ?, hint = ? WHERE ticket = ? AND name_id = ?"
DROP_SEAT = "DELETE FROM seat WHERE ticket = ? AND name_id = ?"
FIND_EXPIRY = """
    SELECT seat.token, seat.expires, name.id FROM seat JOIN name ON name.id = seat.name_id
    WHERE seat.ticket = ? AND name.space = ? AND name.name = ?
"""
SET_EXPIRY = "UPDATE seat SET expires = ? WHERE ticket = ? AND name_id = ?"
NAMES_IN_USE = """
    SELECT name FROM name WHERE space = ? AND name >= ? AND name < ?
    AND (barred > ? OR EXISTS (SELECT 1 FROM seat WHERE name_id = name.id)) ORDER BY name
"""
FIND_CELL = "SELECT value, version, fence FROM cell WHERE space = ? AND name = ? AND expires > ?"
PUT_CELL = """
    INSERT INTO cell (space, name, value, version, fence, expires, life) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, version = excluded.version, fence = excluded.fence,
    expires = excluded.expires, life = excluded.life
"""


@dataclass(slots=True)
class Page(queue_snapshot.Page):
    """What was read of one name, and who sits in each seat."""

    processes: dict[str, Process] = field(default_factory=dict[str, Process])

    def alive(self, machine: Machine, me: Process) -> Alive:
        """Return what tells whether a seat's process lives, asking the kernel once for each process."""
        gone: dict[Process, bool] = {}

        def lives(seat: Seat) -> bool:
            process = self.processes.get(seat.ticket.id, me)
            if process not in gone:
                gone[process] = machine.is_gone(process, me)
            return not gone[process]

        return lives


def read(db: sqlite3.Connection, key: Key, ticket: str | None, now: float, window: int) -> Page:
    """Read the name's row, all holders, the first ``window`` waiters, the last one, and the seat of ``ticket``."""
    name = key[1].decode("utf-8", "surrogatepass")
    row = db.execute(FIND_NAME, key).fetchone()
    if row is None:
        return Page(None, Queue(name))
    first: list[SeatRow] = db.execute(FIRST_SEATS, (row[0], row[0], window)).fetchall()
    more: list[SeatRow] | None = None
    if sum(1 for one in first if one[1]) >= window:
        more = db.execute(LAST_SEAT, (row[0],)).fetchall() + db.execute(OWN_SEAT, (ticket, row[0])).fetchall()
        more += db.execute(BESIDE_SEATS, (row[0],)).fetchall()
    page = queue_snapshot.page_of(name, row, first, more, now)
    processes = {one[0]: Process(one[16], one[17], one[18]) for one in (*first, *(more or ()))}
    return Page(page.row, page.queue, page.whole, page.last, page.window, page.hints, processes)


def advance(
    db: sqlite3.Connection, key: Key, ticket: str | None, now: float, take: Callable[[Page], Step]
) -> tuple[Page, Step]:
    """Read the name and take a step, with as many waiters as it needs; nothing is written yet."""
    window = WINDOW
    while True:
        page = read(db, key, ticket, now, window)
        step = take(page)
        if page.suffices(step.queue):
            return page, step
        window *= 2


def write(db: sqlite3.Connection, key: Key, page: Page, after: Queue, now: float, me: Process, hint: str) -> None:
    """Write what differs from the page that was read. Seats that are new sit in process ``me``, with that hint."""
    if page.row is None and not after.seats():
        return
    name_id = _write_name(db, key, page, after, now)
    for one in queue_snapshot.differences(page, after, now, hint):
        if isinstance(one, Added):
            db.execute(ADD_SEAT, (name_id, *row_of(one.seat, one.place, hint), me.pid, me.started, me.pids))
        elif isinstance(one, Changed):
            seat = one.seat
            db.execute(SET_SEAT, (one.place, seat.token, ns(seat.expires), one.hint, seat.ticket.id, name_id))
        else:
            db.execute(DROP_SEAT, (one.ticket, name_id))


def names(db: sqlite3.Connection, space: bytes, prefix: bytes, now: float, *, exact: bool) -> Iterator[bytes]:
    """Yield the names in use that begin with ``prefix``, or are it."""
    end = prefix + b"\0" if exact else above(prefix)
    for (name,) in db.execute(NAMES_IN_USE, (space, prefix, end, ns(now))):
        yield name


def expiry(db: sqlite3.Connection, key: Key, ticket: str) -> tuple[int | None, float, int] | None:
    """Return token, expiry in seconds and the name's row id of a seat; None if there is no such seat."""
    row = db.execute(FIND_EXPIRY, (ticket, *key)).fetchone()
    return None if row is None else (row[0], row[1] / 1e9, row[2])


def read_cell(db: sqlite3.Connection, key: Key, now: float) -> Cell:
    """Return the cell, unless its life is over."""
    row = db.execute(FIND_CELL, (*key, ns(now))).fetchone()
    return EMPTY if row is None else Cell(row[0], row[1], row[2])


def write_cell(db: sqlite3.Connection, key: Key, cell: Cell, now: float, life: float) -> None:
    """Write the cell, to live so many seconds from now."""
    db.execute(PUT_CELL, (*key, cell.value, cell.version, cell.fence, ns(now + life), ns(life)))


def _write_name(db: sqlite3.Connection, key: Key, page: Page, after: Queue, now: float) -> int:
    barred = ns(after.barred)
    if page.row is None:
        return int(db.execute(ADD_NAME, (*key, after.fence, barred, ns(now))).lastrowid or 0)
    if queue_snapshot.name_differs(page, after, now):
        db.execute(SET_NAME, (after.fence, barred, ns(now), page.row[0]))
    return page.row[0]

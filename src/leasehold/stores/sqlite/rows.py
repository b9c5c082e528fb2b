"""Queues and cells as rows: read what decides, write back what changed.

Why a window of the queue is enough: a step looks at waiters in order and stops at the first that must stay. If such a
one is among those that were read, all that come after it would not have been looked at either; if not, and more are
waiting, the step, which is pure, is taken again with twice as many. So 1,000 waiters cost a step no more than ten do,
and a thousand dead ones are cleared away once. Those whom a step passes over when they must stay prove nothing (see
`rules.successors`), and whoever stands beside a ticket may enter before all others: neither counts as the one that
stays, and the latter are always read. So are holders, the ticket's own seat, and the last row of the queue, whose
number the next arrival counts from.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from leasehold.model import Cell, Kind, Owner, Rule, Seat, Terms, Ticket
from leasehold.rules import Queue, stops
from leasehold.stores.cells import EMPTY
from leasehold.stores.ledger import Alive, Step
from leasehold.stores.sqlite.machine import Machine, Process

WINDOW = 8
"""Waiters that a step reads at first."""

USED_TO_WITHIN = 600 * 10**9
"""Nanoseconds by which ``name.used`` may lag behind, so that most releases need not write that row."""

ALL = 1 << 31
"""As a window: all waiters."""

Key = tuple[bytes, bytes]
"""Namespace and name."""

SEAT = (
    "ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair, lease, delay, owner, meta, "
    "pid, started, pids, hint, beside"
)
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

SeatRow = tuple[str, int, int | None, int, str, int, int, int, int, int, int, int, str, str, int, int, str, str, str]
"""The columns of `SEAT`, in that order."""


def ns(seconds: float) -> int:
    """Return seconds as nanoseconds."""
    return round(seconds * 1e9)


@dataclass(slots=True)
class Page:
    """What was read of one name.

    Attributes:
        row: id, fence, barred and used of the name's row; None if there is none.
        queue: as the ledger takes it.
        whole: whether all waiters were read.
        last: the highest number in the queue, though its seat may be void; 0 if nobody waits.
        window: tickets of the first waiters whose leases last and whom no step passes over. Not the others: one whose
            lease ran out goes to the end when it claims again.
        processes: who sits in each seat.
        hints: where to ring for each seat.

    """

    row: tuple[int, int, int, int] | None
    queue: Queue
    whole: bool = True
    last: int = 0
    window: frozenset[str] = frozenset()
    processes: dict[str, Process] = field(default_factory=dict[str, Process])
    hints: dict[str, str] = field(default_factory=dict[str, str])

    def suffices(self, after: Queue) -> bool:
        """Say whether the step that led to ``after`` saw all that it had to see."""
        return self.whole or any(seat.ticket.id in self.window for seat in after.waiters)

    def hints_of(self, seats: Sequence[Seat]) -> dict[str, str]:
        """Return where to ring for these seats, by ticket."""
        return {seat.ticket.id: self.hints.get(seat.ticket.id, "") for seat in seats}

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
    found: list[SeatRow] = db.execute(FIRST_SEATS, (row[0], row[0], window)).fetchall()
    first = [one for one in found if one[1]]
    whole = len(first) < window
    if not whole:
        found += db.execute(LAST_SEAT, (row[0],)).fetchall() + db.execute(OWN_SEAT, (ticket, row[0])).fetchall()
        found += db.execute(BESIDE_SEATS, (row[0],)).fetchall()
        found = list({one[0]: one for one in found}.values())
    seats = [_seat(one) for one in found]
    seen = {one[0] for one in first}
    holders = tuple(sorted((seat for seat in seats if seat.token is not None), key=lambda seat: seat.token or 0))
    waiters = tuple(sorted((seat for seat in seats if seat.token is None), key=lambda seat: seat.order))
    return Page(
        row,
        Queue(name, row[1], row[2] / 1e9, holders, waiters),
        whole,
        max((one[1] for one in found), default=0),
        frozenset(seat.ticket.id for seat in waiters if seat.ticket.id in seen and seat.expires > now and stops(seat)),
        {one[0]: Process(one[14], one[15], one[16]) for one in found},
        {one[0]: one[17] for one in found},
    )


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
    """Write what differs from the page that was read. Seats that are new sit in process ``me``, with that hint.

    A waiter that asked again while half of its lease is left stays as it is: that saves a write to the disk each time.
    """
    before = {seat.ticket.id: seat for seat in page.queue.seats()}
    remaining = {seat.ticket.id: seat for seat in after.seats()}
    if not before and not remaining and page.row is None:
        return
    name_id = _write_name(db, key, page, after, ns(now))
    for ticket, old in before.items():
        if ticket not in remaining or old.expires <= now:  # a void one that is there again has a new place
            db.execute(DROP_SEAT, (ticket, name_id))
    for ticket, seat in remaining.items():
        old_seat = before.get(ticket)
        if old_seat is None or old_seat.expires <= now:
            # Not the ledger's number: it counts from the last seat that is not void, and others may stand behind that.
            place = page.last + 1 if seat.token is None else 0
            db.execute(ADD_SEAT, (name_id, *_row(seat, place, me, hint)))
        elif (old_seat.token, old_seat.expires) != (seat.token, seat.expires):  # it was granted, or it asked again
            same_hint = page.hints[ticket] == hint
            if seat.token is None and same_hint and old_seat.expires - now > seat.ticket.terms.lease / 2:
                continue
            place, kept = (seat.order, hint) if seat.token is None else (0, page.hints[ticket])
            db.execute(SET_SEAT, (place, seat.token, ns(seat.expires), kept, ticket, name_id))


def names(db: sqlite3.Connection, space: bytes, prefix: bytes, now: float, *, exact: bool) -> Iterator[bytes]:
    """Yield the names in use that begin with ``prefix``, or are it."""
    # UTF-8 has no byte 0xFF, so there is always a next one: all that begins with a prefix lies between the two.
    above = prefix + b"\0" if exact else prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"
    for (name,) in db.execute(NAMES_IN_USE, (space, prefix, above, ns(now))):
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


def _write_name(db: sqlite3.Connection, key: Key, page: Page, after: Queue, now: int) -> int:
    barred = ns(after.barred)
    if page.row is None:
        return int(db.execute(ADD_NAME, (*key, after.fence, barred, now)).lastrowid or 0)
    name_id, fence, was_barred, used = page.row
    if (fence, was_barred) != (after.fence, barred) or used + USED_TO_WITHIN < now:
        db.execute(SET_NAME, (after.fence, barred, now, name_id))
    return name_id


def _seat(row: SeatRow) -> Seat:
    rule = Rule(
        Kind(row[4]), exclusive=bool(row[5]), upgradeable=bool(row[6]), permits=row[7], limit=row[8], fair=bool(row[9])
    )
    terms = Terms(rule, Owner.parse(row[12]), lease=row[10] / 1e9, delay=row[11] / 1e9, meta=row[13])
    return Seat(Ticket(row[0], terms, row[18]), row[1], row[3] / 1e9, row[2])


def _row(seat: Seat, place: int, me: Process, hint: str) -> Sequence[object]:
    terms = seat.ticket.terms
    rule = terms.rule
    return (
        *(seat.ticket.id, place, seat.token, ns(seat.expires)),
        *(rule.kind.value, rule.exclusive, rule.upgradeable, rule.permits, rule.limit, rule.fair),
        *(ns(terms.lease), ns(terms.delay), str(terms.owner), terms.meta),
        *(me.pid, me.started, me.pids, hint, seat.ticket.beside),
    )

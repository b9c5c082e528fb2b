"""The steps of the SQLite store at one name, inside a transaction: acquire, release, renew, check for waiters, sweep.

A sweep drops some unused names and expired cells, so that the file does not grow for ever. It reads a few rows after
those of the last sweep, and starts again after the last row; no index is needed. `host.fence` keeps the highest token
of all dropped names. So tokens never go back, even if the wall clock does.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable

from leasehold._model import QueueEntry, ReleaseReason, RenewalResult, Ticket
from leasehold._rules import Queue
from leasehold._runtimes.base import Runtime
from leasehold.stores._common import queues
from leasehold.stores._common.queues import Alive, Step
from leasehold.stores.sqlite import rows
from leasehold.stores.sqlite.machine import Machine, Process

IDLE_LIFE = 3600.0
"""Seconds for which an unused name is kept."""

SWEEP_EVERY = 256
"""Transactions between two sweeps; the first transaction of a store sweeps."""

SWEPT = 64
"""Rows that a sweep reads."""

SOME_NAMES = "SELECT id, space, name, fence, blocked_until, used FROM name WHERE id > ? ORDER BY id LIMIT ?"
SOME_CELLS = "SELECT id, expires FROM cell WHERE id > ? ORDER BY id LIMIT ?"
LAST_NAME = "SELECT coalesce(max(id), 0) FROM name"
LAST_CELL = "SELECT coalesce(max(id), 0) FROM cell"
RAISE_FENCE = "UPDATE host SET fence = max(fence, ?)"

Change = Callable[[Queue, Alive], Step]
"""Computes what an operation makes of a queue."""


class Steps:
    """The steps of one client. The database's mutex guards them."""

    def __init__(self, runtime: Runtime, machine: Machine) -> None:
        self._runtime = runtime
        self._machine = machine
        self._me: Process | None = None
        self._asked_by = 0
        self._transactions = 0
        self._swept_name: int | None = None  # the row at which the last sweep ended
        self._swept_cell: int | None = None

    def process(self) -> Process:
        """Return this process; a forked child asks the kernel again."""
        if self._me is None or self._asked_by != os.getpid():
            self._me, self._asked_by = self._machine.process(), os.getpid()
        return self._me

    def floor(self, fence: int) -> int:
        """Return the least token to grant; ``fence`` is the highest of all dropped names."""
        return max(self._runtime.wall_us(), fence + 1)

    def try_acquire(
        self, db: sqlite3.Connection, key: rows.Key, ticket: Ticket, now: float, fence: int, *, join: bool
    ) -> tuple[rows.QueueSnapshot, Step]:
        """Return the snapshot and the step of an attempt to acquire; nothing is written yet."""
        floor = self.floor(fence)

        def change(queue: Queue, alive: Alive) -> Step:
            return queues.try_acquire(queue, ticket, join=join, now=now, floor=floor, alive=alive)

        return self._advance(db, key, ticket.id, now, change)

    def release(
        self, db: sqlite3.Connection, key: rows.Key, ticket: str, reason: ReleaseReason, now: float, fence: int
    ) -> tuple[rows.QueueSnapshot, Step]:
        """Remove a ticket, write the hand-over, and return snapshot and step."""
        floor = self.floor(fence)

        def change(queue: Queue, alive: Alive) -> Step:
            return queues.release(queue, ticket, reason=reason, now=now, floor=floor, alive=alive)

        snapshot, step = self._advance(db, key, ticket, now, change)
        rows.write(db, key, snapshot, step.queue, now, self.process(), "")
        return snapshot, step

    def renew(self, db: sqlite3.Connection, key: rows.Key, ticket: Ticket, now: float) -> RenewalResult:
        """Set the lease of an entry to full length, unless it has expired."""
        found = rows.expiry(db, key, ticket.id)
        if found is None:
            return RenewalResult.GONE
        token, expires, name_id = found
        entry = QueueEntry(ticket, 0, expires, token)
        alone = Queue(key[1].decode(), holders=(entry,))  # a renewal does not depend on other entries
        queue, result = queues.renew(alone, ticket.id, now)
        if result is not RenewalResult.GONE:
            rows.set_expiry(db, name_id, ticket.id, queue.holders[0].expires)
        return result

    def worth_retrying(self, db: sqlite3.Connection, key: rows.Key, first: str) -> list[str]:
        """Return the tickets that hold or may enter, and our first one if a holder's entry is void or the name is free.

        Our first one, because the next waiter may be a stopped process: then another process settles the queue.
        """
        now = self._runtime.now()

        def change(queue: Queue, alive: Alive) -> Step:
            queue, woken = queues.hand_over(queues.settle(queue, now, alive), now, 0)
            return Step(queue, woken=woken)

        snapshot, step = self._advance(db, key, None, now, change)
        tickets = {entry.ticket.id: None for entry in step.queue.holders}
        void = any(entry.ticket.id not in tickets for entry in snapshot.queue.holders)
        free = not snapshot.queue.holders and step.queue.blocked_until <= now
        return [*tickets, first] if void or free else list(tickets)

    def settled(self, db: sqlite3.Connection, key: rows.Key, now: float) -> Queue:
        """Return the whole queue, without expired entries and those of dead processes."""
        snapshot = rows.read(db, key, None, now, rows.ALL)
        return queues.settle(snapshot.queue, now, self._alive(snapshot))

    def sweep(self, db: sqlite3.Connection, now: float) -> None:
        """Sweep if it is time."""
        if self._transactions % SWEEP_EVERY == 0:
            self._sweep_names(db, now)
            self._sweep_cells(db, now)
        self._transactions += 1

    def _sweep_names(self, db: sqlite3.Connection, now: float) -> None:
        start = _start(db, LAST_NAME) if self._swept_name is None else self._swept_name
        found = db.execute(SOME_NAMES, (start, SWEPT)).fetchall()
        for name_id, space, name, fence, blocked_until, used in found:
            if max(used, blocked_until) + rows.ns(IDLE_LIFE) > rows.ns(now) or self._in_use(db, (space, name), now):
                continue
            db.execute("DELETE FROM entry WHERE name_id = ?", (name_id,))
            db.execute("DELETE FROM name WHERE id = ?", (name_id,))
            db.execute(RAISE_FENCE, (fence,))
        self._swept_name = found[-1][0] if len(found) == SWEPT else 0

    def _in_use(self, db: sqlite3.Connection, key: rows.Key, now: float) -> bool:
        def change(queue: Queue, alive: Alive) -> Step:
            return Step(queues.settle(queue, now, alive))

        _, step = self._advance(db, key, None, now, change)
        return bool(step.queue.entries()) or step.queue.blocked_until > now

    def _sweep_cells(self, db: sqlite3.Connection, now: float) -> None:
        start = _start(db, LAST_CELL) if self._swept_cell is None else self._swept_cell
        found = db.execute(SOME_CELLS, (start, SWEPT)).fetchall()
        for cell_id, expires in found:
            if expires <= rows.ns(now):
                db.execute("DELETE FROM cell WHERE id = ?", (cell_id,))
        self._swept_cell = found[-1][0] if len(found) == SWEPT else 0

    def _advance(
        self, db: sqlite3.Connection, key: rows.Key, ticket: str | None, now: float, change: Change
    ) -> tuple[rows.QueueSnapshot, Step]:
        """Read the name and take a step, with as many waiters as it needs; nothing is written yet."""
        window = rows.WINDOW
        while True:
            snapshot = rows.read(db, key, ticket, now, window)
            step = change(snapshot.queue, self._alive(snapshot))
            if snapshot.suffices(step.queue):
                return snapshot, step
            window *= 2

    def _alive(self, snapshot: rows.QueueSnapshot) -> Alive:
        """Return a function that checks whether an entry's process lives; it asks the kernel once for each process."""
        me, gone = self.process(), dict[Process, bool]()

        def alive(entry: QueueEntry) -> bool:
            process = Process(*snapshot.own[entry.ticket.id]) if entry.ticket.id in snapshot.own else me
            if process not in gone:
                gone[process] = self._machine.is_gone(process, me)
            return not gone[process]

        return alive


def _start(db: sqlite3.Connection, last: str) -> int:
    """Return a random start, since many stores are closed before their second sweep."""
    (highest,) = db.execute(last).fetchone()
    return random.randint(0, max(0, highest - SWEPT))

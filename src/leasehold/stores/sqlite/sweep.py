"""Drops unused names and expired cells in small steps, so that the file does not grow for ever.

A step reads a few rows after those of the last step, and starts again after the last row; no index is needed.
`host.fence` keeps the highest token of all dropped names. So tokens never go back, even if the wall clock does.
"""

from __future__ import annotations

import random
import sqlite3

from leasehold.stores._common import queues
from leasehold.stores.sqlite import rows
from leasehold.stores.sqlite.machine import Machine, Process

IDLE_LIFE = 3600.0
"""Seconds for which an unused name is kept."""

EVERY = 256
"""Transactions between two steps; the first transaction of a store takes a step."""

STEP = 64
"""Rows that a step reads."""

SOME_NAMES = "SELECT id, space, name, fence, blocked_until, used FROM name WHERE id > ? ORDER BY id LIMIT ?"
SOME_CELLS = "SELECT id, expires FROM cell WHERE id > ? ORDER BY id LIMIT ?"
LAST_NAME = "SELECT coalesce(max(id), 0) FROM name"
LAST_CELL = "SELECT coalesce(max(id), 0) FROM cell"
RAISE_FENCE = "UPDATE host SET fence = max(fence, ?)"


class Sweeper:
    """Takes the steps of one client, and knows where the last one ended. The database's mutex guards it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._transactions = 0
        self._name: int | None = None
        self._cell: int | None = None

    def step(self, db: sqlite3.Connection, now: float, me: Process) -> None:
        """Take a step if it is time, inside the open transaction."""
        if self._transactions % EVERY == 0:
            self._sweep_names(db, now, me)
            self._sweep_cells(db, now)
        self._transactions += 1

    def _sweep_names(self, db: sqlite3.Connection, now: float, me: Process) -> None:
        self._name = _start(db, LAST_NAME) if self._name is None else self._name
        found = db.execute(SOME_NAMES, (self._name, STEP)).fetchall()
        for name_id, space, name, fence, blocked_until, used in found:
            if max(used, blocked_until) + rows.ns(IDLE_LIFE) > rows.ns(now) or self._in_use(db, (space, name), now, me):
                continue
            db.execute("DELETE FROM entry WHERE name_id = ?", (name_id,))
            db.execute("DELETE FROM name WHERE id = ?", (name_id,))
            db.execute(RAISE_FENCE, (fence,))
        self._name = found[-1][0] if len(found) == STEP else 0

    def _in_use(self, db: sqlite3.Connection, key: rows.Key, now: float, me: Process) -> bool:
        def settled(snapshot: rows.QueueSnapshot) -> queues.Step:
            return queues.Step(queues.settle(snapshot.queue, now, snapshot.alive(self._machine, me)))

        _, step = rows.advance(db, key, None, now, settled)
        return bool(step.queue.entries()) or step.queue.blocked_until > now

    def _sweep_cells(self, db: sqlite3.Connection, now: float) -> None:
        self._cell = _start(db, LAST_CELL) if self._cell is None else self._cell
        found = db.execute(SOME_CELLS, (self._cell, STEP)).fetchall()
        for cell_id, expires in found:
            if expires <= rows.ns(now):
                db.execute("DELETE FROM cell WHERE id = ?", (cell_id,))
        self._cell = found[-1][0] if len(found) == STEP else 0


def _start(db: sqlite3.Connection, last: str) -> int:
    """Return a random start, since many stores are closed before their second step."""
    (highest,) = db.execute(last).fetchone()
    return random.randint(0, max(0, highest - STEP))

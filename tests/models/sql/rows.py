"""What models of SQL servers share: tables that SQLite keeps, and locks of rows that are waited for in turn."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from leasehold.stores._sql.transport import Row, Value

NAME = "SELECT id FROM leasehold_name WHERE space = ? AND name = ?"

TABLES = ("leasehold_meta", "leasehold_name", "leasehold_entry", "leasehold_cell")

S = TypeVar("S")

Rows = Sequence[Sequence[Row]]
"""All that is in each of `TABLES`."""


class Tables:
    """The tables, in memory; one set serves all histories of a process, one after the other.

    Attributes:
        clock: what ``server_clock()`` is in statements, in nanoseconds.

    """

    def __init__(self, script: Sequence[str], translated: Callable[[str], str]) -> None:
        """Make them by the statements of a script, which are translated to SQLite's words."""
        self.clock = 0
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._last_id = 0
        self.db.create_function("server_clock", 0, lambda: self.clock)
        self.db.create_function("LAST_INSERT_ID", 1, self._keep)
        self.db.create_function("LOCATE", 2, _locate)
        self.db.create_function("CONCAT", -1, lambda *texts: "".join(texts))
        for statement in script:
            self.db.execute(translated(statement))
        self.first = self.rows()

    def change(self, text: str, values: Sequence[Value]) -> int:
        """Carry out a statement; return its LAST_INSERT_ID, or else how many rows it changed; 0 if none."""
        self._last_id = 0
        changed = self.db.execute(text, values).rowcount
        return changed and (self._last_id or changed)

    def _keep(self, number: int) -> int:
        self._last_id = number
        return number

    def rows(self) -> list[list[Row]]:
        """Return all that is in them."""
        return [self.db.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES]

    def restore(self, rows: Rows) -> None:
        """Let them have nothing but these rows."""
        for table, some in zip(TABLES, rows, strict=True):
            self.db.execute(f"DELETE FROM {table}")
            for row in some:
                self.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _locate(part: str, text: str) -> int:
    return text.find(part) + 1


class Locks(Generic[S]):
    """Who has which rows locked, and who waits for one: each for one at a time."""

    def __init__(self) -> None:
        self._owners: dict[Hashable, S] = {}
        self._had: dict[S, list[Hashable]] = {}
        self._queues: dict[Hashable, deque[S]] = {}
        self._waits: dict[S, Hashable] = {}

    def take(self, row: Hashable, who: S) -> bool:
        """Lock a row unless another has it; return whether it is locked by ``who`` now."""
        owner = self._owners.setdefault(row, who)
        if owner is not who:
            return False
        had = self._had.setdefault(who, [])
        if row not in had:
            had.append(row)
        return True

    def wait(self, row: Hashable, who: S) -> None:
        """Put it at the end of those that wait for a row."""
        self._waits[who] = row
        self._queues.setdefault(row, deque()).append(who)

    def waits(self, who: S) -> bool:
        """Return whether it waits."""
        return who in self._waits

    def give_up(self, who: S) -> None:
        """Let it wait no longer, if it does."""
        if who in self._waits:
            self._queues[self._waits.pop(who)].remove(who)

    def let_go(self, who: S) -> list[S]:
        """Let go of all that it has locked; return those that have waited longest for each, and have it now."""
        self.give_up(who)
        rows = self._had.pop(who, [])
        for row in rows:
            del self._owners[row]
        return self._inherited(rows)

    def let_go_of(self, row: Hashable, who: S) -> list[S]:
        """Let go of one, if it has that locked; return who has waited longest for it, if any, and has it now."""
        if self._owners.get(row) is not who:
            return []
        self._had[who].remove(row)
        del self._owners[row]
        return self._inherited([row])

    def _inherited(self, rows: Sequence[Hashable]) -> list[S]:
        next_waiters = list[S]()
        for row in rows:
            if queue := self._queues.get(row):
                next_waiter = queue.popleft()
                del self._waits[next_waiter]
                self.take(row, next_waiter)
                next_waiters.append(next_waiter)
        return next_waiters

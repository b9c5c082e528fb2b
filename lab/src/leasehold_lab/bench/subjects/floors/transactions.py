"""The floor of SQLite: two write transactions, one row each, in a file set as leasehold sets its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from leasehold_lab.bench.subjects.base import Scope, Turn

TAKE = """
INSERT INTO lock VALUES (?, 'me', 1)
ON CONFLICT (name) DO UPDATE SET holder = 'me', token = token + 1 WHERE holder IS NULL
"""


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. For one thread."""

    def __init__(self, scope: Scope) -> None:
        path = Path(scope.folder, f"{scope.namespace}.db")
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE lock (name TEXT PRIMARY KEY, holder TEXT, token INT) WITHOUT ROWID")

    def turn(self, name: str) -> Turn:
        execute = self._database.execute

        def take() -> bool:
            execute("BEGIN IMMEDIATE")
            added = execute(TAKE, (name,)).rowcount
            execute("COMMIT")
            return added == 1

        def leave() -> None:
            execute("BEGIN IMMEDIATE")
            execute("UPDATE lock SET holder = NULL WHERE name = ? AND holder = 'me'", (name,))
            execute("COMMIT")

        return take, leave

    def refused(self, name: str) -> bool:
        return not self.turn(name)[0]()

    def close(self) -> None:
        self._database.close()


blocking = Blocking

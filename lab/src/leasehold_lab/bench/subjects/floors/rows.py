"""The floor of the databases: two statements, each a transaction of one row, over the bare driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn

Run = Callable[[str, Sequence[object]], int]
"""Executes a statement; returns the number of rows that it changed."""


@dataclass(frozen=True, slots=True)
class Words:
    """The statements, with ``{table}`` for the table and ``%s`` for the name."""

    create: str
    take: str
    leave: str


class Rows:
    """See `leasehold_lab.bench.subjects.base.Session`. Each thread has a connection, which commits each statement."""

    def __init__(self, scope: Scope, words: Words, connect: Callable[[str], Any], run: Callable[[Any], Run]) -> None:
        self._scope, self._connect, self._run = scope, connect, run
        table = table_of(scope.namespace)
        self._take, self._leave = words.take.format(table=table), words.leave.format(table=table)
        self._connections: list[Any] = []
        self._mine = threading.local()
        self._mutex = threading.Lock()
        self._runner()(words.create.format(table=table), ())

    def turn(self, name: str) -> Turn:
        run, take, leave, names = self._runner(), self._take, self._leave, (name,)

        def release() -> None:
            if run(leave, names) != 1:
                raise RuntimeError("the floor released what it did not hold")

        return lambda: run(take, names) > 0, release

    def refused(self, name: str) -> bool:
        return not self.turn(name)[0]()

    def close(self) -> None:
        """Close the connections. The table stays: who measures drops it."""
        for connection in self._connections:
            connection.close()

    def _runner(self) -> Run:
        run: Run | None = getattr(self._mine, "run", None)
        if run is None:
            connection = self._connect(self._scope.url)
            with self._mutex:
                self._connections.append(connection)
            run = self._mine.run = self._run(connection)
        return run


def table_of(namespace: str) -> str:
    """Return the name of the table of a trial."""
    return namespace.replace("-", "_")

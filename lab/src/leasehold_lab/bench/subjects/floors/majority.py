"""The floor of Redlock: one claim sent to all servers at once, done when the majority has answered.

Each server gets the very bytes that leasehold sends to a single one. With five servers it takes as long as the slowest
of the three fastest single claims.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leasehold_lab.bench.subjects.base import Scope, Turn
from leasehold_lab.bench.subjects.floors.raw import Line
from leasehold_lab.bench.subjects.floors.tap import Recording, record


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. For one thread."""

    def __init__(self, scope: Scope) -> None:
        scopes = [replace(scope, url=url) for url in scope.urls]
        self._recordings = [record(one) for one in scopes]
        self._lines = [Line(one) for one in scopes]
        self._most = len(scopes) // 2 + 1
        self._late = [0] * len(scopes)

    def turn(self, name: str) -> Turn:
        those = [one.renamed(name) for one in self._recordings]
        acquire, release = [one.acquire for one in those], [one.release for one in those]

        def take() -> bool:
            return all(reply[0] == 1 for reply in self._ask(acquire))

        def leave() -> None:
            if any(reply != 1 for reply in self._ask(release)):
                raise RuntimeError("the floor released what it did not hold")

        return take, leave

    def refused(self, name: str) -> bool:
        those: list[Recording] = [one.renamed(name) for one in self._recordings]
        return any(reply[0] == 0 for reply in self._ask([one.attempt for one in those]))

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def _ask(self, commands: Sequence[bytes]) -> list[Any]:
        """Send to all; return the first replies that make a majority. The others are read with the next ones."""
        for at, command in enumerate(commands):
            self._lines[at].send(command)
            self._late[at] += 1
        found, open_ = list[Any](), {self._lines[at].descriptor: at for at in range(len(commands))}
        while len(found) < self._most:
            for descriptor in select.select(list(open_), [], [])[0]:
                at = open_[descriptor]
                for reply in self._lines[at].reply():
                    self._late[at] -= 1
                    if not self._late[at]:
                        del open_[descriptor]
                        found.append(reply)
        return found


blocking = Blocking

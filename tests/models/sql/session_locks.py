"""What models of SQL servers share of ``mode=session``: locks that belong to a session, and are waited for in turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from leasehold.stores.mysql.session_statements import new_marker
from models.sql.rows import Locks

S = TypeVar("S")

LOOKS_EACH = 1.0
"""Seconds between two looks of a session that waits whether its client is still there; MySQL and MariaDB look as often,
PostgreSQL by ``client_connection_check_interval``, which our sessions set."""

ENDED_WITHIN = 0.01
"""Most seconds that a terminated session still lives: the session that ended it is answered before that."""


def next_look(since: float, now: float) -> float:
    """Return when a session that has waited since then looks whether its client is there."""
    return since + LOOKS_EACH * (math.floor((now - since) / LOOKS_EACH) + 1)


class SessionLocks(Locks[S]):
    """Who has which lock, how many times over, and who waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self._times = Counter[tuple[Hashable, S]]()

    def owner(self, key: Hashable) -> S | None:
        """Return who has a lock."""
        return self._owners.get(key)

    def owners(self) -> set[S]:
        """Return all who have one, but for the markers of sessions."""
        return {who for key, who in self._owners.items() if not str(key).startswith(new_marker(b""))}

    def lock(self, key: Hashable, who: S) -> bool:
        """Take a lock, or once more; return whether it was to be had."""
        had = self.take(key, who)
        self._times[key, who] += had
        return had

    def unlock(self, key: Hashable, who: S) -> list[S]:
        """Give a lock back once that it has; return who has it now and waited for it."""
        self._times[key, who] -= 1
        if self._times[key, who]:
            return []
        del self._times[key, who]
        return self._handed(self.let_go_of(key, who))

    def end(self, who: S) -> list[S]:
        """Free all that a session has, or waits for; return those who have it now and waited for it."""
        for key in self._had.get(who, ()):
            del self._times[key, who]
        return self._handed(self.let_go(who))

    def known(self) -> list[tuple[Hashable, S]]:
        """Return each lock with who has it or waits for it."""
        return [*self._owners.items(), *((key, who) for who, key in self._waits.items())]

    def _handed(self, next_waiters: Sequence[S]) -> list[S]:
        for next_waiter in next_waiters:
            self._times[self._had[next_waiter][-1], next_waiter] = 1
        return list(next_waiters)

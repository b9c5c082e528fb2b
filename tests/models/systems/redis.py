"""One server of Redis."""

from __future__ import annotations

from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.redis.server import RedisServerModel
from models.redis.transport import SimulatedRedis
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.system import Spoilt, System

LOCKS = ("lock", "fixed", "fair", "read", "permits")

AWAY = 1.0
"""Seconds that a restart may take."""

KEPT = 3600.0
"""Seconds for which a server keeps a name that nobody uses, at least."""


class RedisSystem(System):
    """The server may restart with its data while its word is kept; tokens survive the loss of its data or its clock."""

    name = "redis"
    menu = Menu(
        LOCKS,
        (*OF_CLIENTS, Kind.LATE, Kind.REPEAT, Kind.DEAF, Kind.DEAF, Kind.RESTART, Kind.SCRIPTS),
        (Kind.FLUSH, Kind.FORGET, Kind.FORWARD, Kind.BACK),
    )
    passes_over = True
    """A server cannot tell a connection that is made anew from a dead client, for which others must not wait."""

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.server = RedisServerModel(harness.scheduler, rate=rate, rewrite=spoilt.rewrite)
        self.hosts = [self.server]
        self.opener = SimulatedRedis(self.server)
        self._forgot = self._went_back = False

    def seen(self) -> str:
        """Return who came in after it had left."""
        return ", ".join(f"a ticket {how} after its leave" for how in self.server.orphans.found.values())

    def restart(self, one: Strike) -> float:
        """Restart it with what it had."""
        seconds = 0.05 + one.luck * AWAY
        self.server.restart(seconds)
        return seconds

    def scripts(self, one: Strike) -> float:
        """Let it forget its scripts."""
        self.server.forget_scripts()
        return 0.0

    def flush(self, one: Strike) -> float | None:
        """Take its keys: not if its clock was set back, since tokens rest on the stored one or on the clock."""
        if self._went_back:
            return None
        self._lose()
        self.server.flush()
        return 0.0

    def forget(self, one: Strike) -> float | None:
        """Restart it without its keys."""
        if self._went_back:
            return None
        self._lose()
        seconds = 0.05 + one.luck * AWAY
        self.server.restart(seconds, lose=True)
        return seconds

    def _lose(self) -> None:
        self._forgot = True
        self.removals.append(self.harness.scheduler.time)

    def back(self, one: Strike) -> float | None:
        """Set its clock back, unless it has lost its keys; the first time often by two hours.

        The first of those passes soon, at once. So keys that were to live for an hour are gone, while the clock is
        behind the tokens in them. Then somebody sets it right. It is not set back by hours again: a name that was
        unused for an hour is forgotten.
        """
        if self._forgot:
            return None
        far, self._went_back = not self._went_back and one.luck * 10 % 1 > 0.5, True
        if not far:
            self.server.step(-2.0 * one.luck)
        else:
            self.server.step(-2.0 * KEPT)
            for more in (1.0, 2.0):
                when = self.harness.scheduler.time + more * (0.5 + one.luck)
                self.harness.scheduler.at(when, self.harness.fate, lambda: self.server.step(KEPT + 1.0))
        return 0.0

"""What callers do while no server, or another one, has their names: one of them looks for it, and all retry."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._runtimes.base import Runtime, Signal

FIRST_PAUSE = 0.02
"""Seconds before the second attempt; each further pause is twice as long, with jitter."""

LONGEST_PAUSE = 0.5
"""Seconds: the most by which the end of a failover or of a slot migration is noticed late."""


class Retries:
    """The pauses between the attempts of one caller, whose time is over at ``until``."""

    def __init__(self, runtime: Runtime, until: float) -> None:
        self._runtime = runtime
        self._until = until
        self._pause = FIRST_PAUSE

    async def pause(self) -> bool:
        """Wait before the next attempt; return False, at once, if there is no time for one."""
        seconds = self._pause * (0.5 + self._runtime.jitter() / 2)
        if self._runtime.now() + seconds >= self._until:
            return False
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        await self._runtime.sleep(seconds)
        return True


class SingleFlight:
    """Runs one piece of work at a time; a caller that comes meanwhile waits for its end instead of repeating it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._waiting: list[Signal] | None = None  # None: no work is under way

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], within: float) -> bool:
        """Do the work, and return True; or wait at most ``within`` seconds for the caller that does it.

        Only that one gets a failure. The others cannot tell how the work ended, or whether it has.
        """
        mine: list[Signal] = []
        signal: Signal | None = None
        try:
            with self._mutex:
                if self._waiting is None:
                    self._waiting = mine
                else:
                    signal = self._runtime.signal()
                    self._waiting.append(signal)
            if signal is not None:
                await signal.wait(within)
                return False
            await work()
            return True
        finally:  # around all of it: a signal handler may raise at any step; else no later call would work
            with self._mutex:
                if self._waiting is mine:
                    self._waiting = None
            for other in mine:
                other.set()

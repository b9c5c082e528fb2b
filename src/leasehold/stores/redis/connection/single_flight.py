"""Work that many callers need at once, done by one of them: after a failover all need the new primary."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._runtimes.base import Runtime, Signal


class SingleFlight:
    """Runs one piece of work at a time; a caller that comes meanwhile waits for its end instead of repeating it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._waiting: list[Signal] | None = None  # None: no work is under way

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], within: float) -> None:
        """Do the work, or wait at most ``within`` seconds for the caller that does it; only that one gets a failure."""
        signal: Signal | None = None
        with self._mutex:
            if self._waiting is None:
                self._waiting = []
            else:
                signal = self._runtime.signal()
                self._waiting.append(signal)
        if signal is not None:
            await signal.wait(within)
            return
        try:
            await work()
        finally:
            with self._mutex:
                waiting, self._waiting = self._waiting, None
            for other in waiting or ():
                other.set()

"""One does what many need at the same moment, as all callers of a client need the new primary after a failover."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._runtimes.base import Runtime, Signal


class SingleFlight:
    """Runs one piece of work at a time; who comes meanwhile waits for it instead of doing it again."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._waiting: list[Signal] | None = None  # None: nobody works

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], within: float) -> None:
        """Do the work, or wait at most ``within`` seconds for whoever does it; a failure is told to that one only."""
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

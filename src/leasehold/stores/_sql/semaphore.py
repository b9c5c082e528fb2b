"""A bounded number of permits: for connections in use, and for statements on one connection. For both flavors."""

from __future__ import annotations

from collections import deque

from leasehold._runtimes.base import Runtime, Signal


class Semaphore:
    """Permits, first come, first served. Used by many tasks or threads at once."""

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._free = limit
        self._queue: deque[Signal] = deque()

    @property
    def busy(self) -> bool:
        """Whether all permits are taken."""
        return not self._free

    async def take(self, until: float) -> bool:
        """Wait for a permit, at most until a reading of the clock; return whether it was granted. `give` returns it."""
        with self._mutex:
            if self._free:
                self._free -= 1
                return True
            signal = self._runtime.signal()
            self._queue.append(signal)
        try:
            await signal.wait(max(until - self._runtime.now(), 0.0))
        except BaseException:
            if not self._withdraw(signal):
                self.give()  # the permit was granted at the same moment
            raise
        return not self._withdraw(signal)

    def give(self) -> None:
        """Return a permit; the longest waiter gets it."""
        with self._mutex:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._free += 1

    def _withdraw(self, signal: Signal) -> bool:
        """Remove a waiter; return whether it was still waiting. If not, it has a permit."""
        with self._mutex:
            if signal in self._queue:
                self._queue.remove(signal)
                return True
        return False

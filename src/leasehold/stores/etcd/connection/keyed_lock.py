"""One at a time does what is done once for all; the others wait. In either flavor, and with a deadline."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable


class KeyedLock:
    """Locks by name for threads or tasks of one client, made of the runtime's signals."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._taken: dict[str, list[Signal]] = {}

    @asynccontextmanager
    async def turn(self, name: str, until: float) -> AsyncGenerator[None]:
        """Wait for one's turn, at most until ``until``; whoever is next goes on when the block ends, however it does.

        Raises:
            StoreUnavailable: it did not come in time; nothing was sent.

        """
        while (signal := self._take(name)) is not None:
            if not await signal.wait(until - self._runtime.now()):
                raise StoreUnavailable("etcd was too slow: another request of this client waits for it")
        try:
            yield
        finally:
            with self._mutex:
                waiting = self._taken.pop(name)
            for signal in waiting:  # all of them: one that was cancelled meanwhile would keep its turn to itself
                signal.set()

    def _take(self, name: str) -> Signal | None:
        with self._mutex:
            if name not in self._taken:
                self._taken[name] = []
                return None
            signal = self._runtime.signal()
            self._taken[name].append(signal)
            return signal

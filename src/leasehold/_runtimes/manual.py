"""Both runtimes with a clock that can be moved, for the tests of users: see `leasehold.testing`."""

from __future__ import annotations

import time

from leasehold._runtimes import clock
from leasehold._runtimes.aio import AsyncioRuntime, TaskSignal
from leasehold._runtimes.base import Signal
from leasehold._runtimes.blocking import BlockingRuntime, ThreadSignal

CHECK_EVERY = 0.02
"""Seconds of real time after which a wait notices that the clock was moved."""


class ManualClock:
    """The clock of a `TestClient`: it runs as the real one does, and `advance` moves it forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        return clock.boottime() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time pass at once, for the store, all leases and all waits.

        It is as if the process had been stopped for so long: no lease is renewed meanwhile, so a hold whose lease is
        shorter is lost.

        Args:
            seconds: how far; above 0.

        Raises:
            ValueError: it is not above 0.
        """
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, it is {seconds}: a clock does not go back")
        self._ahead += seconds


class ManualBlockingRuntime(BlockingRuntime):
    """The blocking runtime with a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.now = clock.now
        self._clock = clock

    def signal(self) -> Signal:
        return _Signal(self._clock, ThreadSignal())

    async def sleep(self, seconds: float) -> None:
        until = self._clock.now() + seconds
        while (left := until - self._clock.now()) > 0:
            time.sleep(min(left, CHECK_EVERY))  # noqa: ASYNC251 it blocks, as this runtime does


class ManualAsyncioRuntime(AsyncioRuntime):
    """The asyncio runtime with a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.now = clock.now
        self._clock = clock

    def signal(self) -> Signal:
        return _Signal(self._clock, TaskSignal())

    async def sleep(self, seconds: float) -> None:
        until = self._clock.now() + seconds
        while (left := until - self._clock.now()) > 0:
            await super().sleep(min(left, CHECK_EVERY))


class _Signal:
    """A signal whose wait times out by the manual clock."""

    def __init__(self, clock: ManualClock, signal: Signal) -> None:
        self._clock = clock
        self._signal = signal
        self.set, self.clear, self.is_set = signal.set, signal.clear, signal.is_set

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return await self._signal.wait(None)
        until = self._clock.now() + timeout
        while not self._signal.is_set() and (left := until - self._clock.now()) > 0:
            await self._signal.wait(min(left, CHECK_EVERY))
        return await self._signal.wait(0) if timeout <= 0 else self._signal.is_set()

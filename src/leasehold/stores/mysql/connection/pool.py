"""The connections of one client: opened when needed, used by one task or thread at a time, kept for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from leasehold._runtimes.base import Runtime, Signal
from leasehold.stores.mysql.connection.base import Line, no_answer

L = TypeVar("L", bound=Line)

AT_ONCE = 16
"""Connections in use at the same time, but for urgent calls; who comes later waits for one."""

KEPT = 60.0
"""Seconds for which a connection is kept open that nobody uses."""

Connect = Callable[[float], Awaitable[L]]
"""Opens a connection, within so many seconds."""


class Turns:
    """So many at a time, first come, first served. Used by many tasks or threads at once."""

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._free = limit
        self._queue: deque[Signal] = deque()

    async def take(self, until: float) -> bool:
        """Wait for a turn, and return whether it came; it must be given back."""
        with self._mutex:
            if self._free:
                self._free -= 1
                return True
            signal = self._runtime.signal()
            self._queue.append(signal)
        try:
            await signal.wait(max(until - self._runtime.now(), 0.0))
        except BaseException:
            if not self._leaves(signal):
                self.give()
            raise
        return not self._leaves(signal)

    def give(self) -> None:
        """Pass a turn on to who waits longest."""
        with self._mutex:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._free += 1

    def _leaves(self, signal: Signal) -> bool:
        """Take one out who waits; return whether it was still there. If not, it has its turn."""
        with self._mutex:
            if signal in self._queue:
                self._queue.remove(signal)
                return True
        return False


class Pool(Generic[L]):
    """Used by many tasks or threads at once."""

    def __init__(self, runtime: Runtime, connect: Connect[L], where: str) -> None:
        self._runtime = runtime
        self._connect = connect
        self._where = where
        self._inherited: list[L] = []
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._idle: list[tuple[L, float]] = []  # and since when, the one that was used last at the end
        self._used: set[L] = set()
        self._turns = Turns(self._runtime, AT_ONCE)
        self._closed = False

    async def take(self, until: float, *, urgent: bool = False) -> tuple[L, bool]:
        """Return a connection that nobody else uses, and whether it is a new one. It must be given back, or dropped.

        Raises:
            StoreUnavailable: there is none in time; nothing was sent.

        """
        if not urgent and not await self._turns.take(until):
            raise no_answer(self._where, f"all {AT_ONCE} connections of this client are busy", unknown=False)
        try:
            return await self._ready(until)
        except BaseException:
            if not urgent:
                self._turns.give()
            raise

    async def give(self, line: L, *, urgent: bool = False) -> None:
        """Take a connection back, with no transaction open and no reply unread."""
        now, done = self._runtime.now(), list[L]()
        with self._mutex:
            self._used.discard(line)
            if not self._closed and line.usable():
                self._idle.append((line, now))
            else:
                done.append(line)
            if self._idle and self._idle[0][1] < now - KEPT:
                done.append(self._idle.pop(0)[0])
        if not urgent:
            self._turns.give()
        for one in done:
            await one.close()

    def drop(self, line: L, *, urgent: bool = False) -> None:
        """Close a connection of which nobody knows what it does."""
        line.abort()
        with self._mutex:
            self._used.discard(line)
        if not urgent:
            self._turns.give()

    async def forget_idle(self) -> None:
        """Close those that nobody uses: the server hung up on one of them."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for line, _ in idle:
            line.abort()

    async def close(self) -> None:
        """Close all; those in use when they are given back."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for line, _ in idle:
            await line.close()

    def after_fork(self) -> None:
        """Start anew in a forked child; the connections are the parent's."""
        self._inherited += [*(line for line, _ in self._idle), *self._used]  # kept: what becomes garbage would say so
        for line in self._inherited:
            line.disown()
        self._reset()

    async def _ready(self, until: float) -> tuple[L, bool]:
        if self._closed:
            raise no_answer(self._where, "the client is closed", unknown=False)
        while True:
            with self._mutex:
                line = self._idle.pop()[0] if self._idle else None
                if line is not None:
                    self._used.add(line)
            if line is None:
                break
            if line.usable():
                return line, False
            line.abort()
            with self._mutex:
                self._used.discard(line)
        line = await self._connect(max(until - self._runtime.now(), 0.001))
        with self._mutex:
            self._used.add(line)
        return line, True

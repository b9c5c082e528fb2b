"""The floor of acquire + release: the very bytes that leasehold sends, without leasehold."""

from __future__ import annotations

import asyncio
import threading

from leasehold_lab.bench.subjects.base import AsyncTurn, Scope, Turn
from leasehold_lab.bench.subjects.floors.raw import Line, Protocol
from leasehold_lab.bench.subjects.floors.tap import Recording, record


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. Each thread has a connection."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._recording = record(scope)
        self._mine = threading.local()
        self._lines: list[Line] = []

    def turn(self, name: str) -> Turn:
        call, those = self._line().call, self._recording.renamed(name)
        acquire, release = those.acquire, those.release

        def take() -> bool:
            return bool(call(acquire)[0] == 1)

        def leave() -> None:
            if call(release) != 1:
                raise RuntimeError("the floor released what it did not hold")

        return take, leave

    def refused(self, name: str) -> bool:
        return bool(self._line().call(self._recording.renamed(name).attempt)[0] == 0)

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def _line(self) -> Line:
        line: Line | None = getattr(self._mine, "line", None)
        if line is None:
            line = self._mine.line = Line(self._scope)
            self._lines.append(line)
        return line


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`. All tasks share one connection."""

    def __init__(self, protocol: Protocol, recording: Recording) -> None:
        self._recording = recording
        self._protocol = protocol

    async def turn(self, name: str) -> AsyncTurn:
        call, those = self._protocol.call, self._recording.renamed(name)
        acquire, release = those.acquire, those.release

        async def take() -> bool:
            return bool((await call(acquire))[0] == 1)

        async def leave() -> None:
            if await call(release) != 1:
                raise RuntimeError("the floor released what it did not hold")

        return take, leave

    async def refused(self, name: str) -> bool:
        return bool((await self._protocol.call(self._recording.renamed(name).attempt))[0] == 0)

    async def close(self) -> None:
        self._protocol.close()


blocking = Blocking


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(await Protocol.connect(scope), await asyncio.to_thread(record, scope))

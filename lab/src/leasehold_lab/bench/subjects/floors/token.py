"""The floor of hand-over: one token in a list, taken by BLPOP and put back by RPUSH."""

from __future__ import annotations

import threading

from leasehold.stores.redis.connection.base import pack
from leasehold_lab.bench.subjects.base import AsyncTurn, Scope, Turn
from leasehold_lab.bench.subjects.floors.raw import Line, Protocol


def prepare(scope: Scope, name: str) -> None:
    """Put the one token there."""
    line = Line(scope)
    line.call(pack(b"DEL", scope.key(name).encode()))
    line.call(pack(b"RPUSH", scope.key(name).encode(), b"token"))
    line.close()


def _take(scope: Scope, name: str) -> bytes:
    return pack(b"BLPOP", scope.key(name).encode(), b"0")


def _put(scope: Scope, name: str) -> bytes:
    return pack(b"RPUSH", scope.key(name).encode(), b"token")


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Turns`. Each thread has a connection."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._mine = threading.local()

    def turn(self, name: str) -> Turn:
        line: Line | None = getattr(self._mine, "line", None)
        if line is None:
            line = self._mine.line = Line(self._scope)
        call, take, put = line.call, _take(self._scope, name), _put(self._scope, name)
        return lambda: call(take), lambda: call(put)

    def close(self) -> None:
        """Leave the sockets to the end of the process."""


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncTurns`. Each turn has a connection: BLPOP blocks it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._protocols: list[Protocol] = []

    async def turn(self, name: str) -> AsyncTurn:
        protocol = await Protocol.connect(self._scope)
        self._protocols.append(protocol)
        call, take, put = protocol.call, _take(self._scope, name), _put(self._scope, name)
        return lambda: call(take), lambda: call(put)

    async def close(self) -> None:
        for protocol in self._protocols:
            protocol.close()


blocking = Blocking


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope)

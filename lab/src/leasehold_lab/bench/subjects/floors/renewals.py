"""The floor of holding: one key for each lock, all renewed in pipelined commands at a third of the lease."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from leasehold.stores.redis.connection.base import pack
from leasehold_lab.bench.subjects.base import LEASE, AsyncTurn, Scope
from leasehold_lab.bench.subjects.floors.raw import Protocol

PER_WRITE = 500
"""Commands in one write."""


class Awaiting:
    """See `leasehold_lab.bench.subjects.base.AsyncSession`."""

    def __init__(self, scope: Scope, protocol: Protocol) -> None:
        self._scope = scope
        self._protocol = protocol
        self._held: dict[str, bytes] = {}
        self._renewing = asyncio.create_task(self._renew())

    async def turn(self, name: str) -> AsyncTurn:
        key, milliseconds = self._scope.key(name).encode(), b"%d" % (LEASE * 1000)

        async def take() -> bool:
            took = await self._protocol.call(pack(b"SET", key, b"me", b"NX", b"PX", milliseconds)) is not None
            if took:
                self._held[name] = pack(b"PEXPIRE", key, milliseconds)
            return took

        async def leave() -> None:
            self._held.pop(name)
            await self._protocol.call(pack(b"DEL", key))

        return take, leave

    async def refused(self, name: str) -> bool:
        return not await (await self.turn(name))[0]()

    async def close(self) -> None:
        self._renewing.cancel()
        with suppress(asyncio.CancelledError):
            await self._renewing
        self._protocol.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE / 3)
            commands = list(self._held.values())
            for start in range(0, len(commands), PER_WRITE):
                await asyncio.gather(*map(self._protocol.call, commands[start : start + PER_WRITE]))


async def awaiting(scope: Scope) -> Awaiting:
    """Open a session for tasks."""
    return Awaiting(scope, await Protocol.connect(scope))

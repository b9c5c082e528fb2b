"""The asyncio transport of strict mode: what waits for replicas does so on a connection of its own.

``WAIT`` speaks of what its own connection wrote, and the server reads nothing more from a connection that waits. On the
one connection that all tasks share, one stalled replica would hold up everybody's renewals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.aio import AioTransport
from leasehold.stores.redis.connection.base import OnMessage, OnSilence
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.strict.quorum import waits

MOST_TRANSPORTS = 32
"""Connections that wait, at most; more tasks than these share them, and wait for each other."""


class WaitTransport(AioTransport):
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        super().__init__(runtime, settings, channel, on_message, on_silence)
        self._apart: list[AioTransport] = []
        self._free: list[AioTransport] = []
        self._turn = 0

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if not commands or not waits(commands[-1]):
            return await super().call_all(commands, within=within)
        transport, alone = self._taken()
        answered = False
        try:
            replies = await transport.call_all(commands, within=within)
            answered = True
            return replies
        finally:
            if not answered:
                transport.hang_up()  # it may wait still, and whoever uses it next would wait with it
            if alone:
                self._free.append(transport)

    def hang_up(self) -> None:
        for transport in self._apart:
            transport.hang_up()
        super().hang_up()

    async def close(self) -> None:
        await super().close()
        for transport in self._apart:
            await transport.close()

    def after_fork(self, channel: bytes) -> None:
        super().after_fork(channel)
        for transport in self._apart:
            transport.after_fork(b"")
        self._free = list(self._apart)

    def _taken(self) -> tuple[AioTransport, bool]:
        """Take a transport that nobody uses, or share one of `MOST_TRANSPORTS`; return whether it is ours alone."""
        if self._free:
            return self._free.pop(), True
        if len(self._apart) < MOST_TRANSPORTS:
            transport = AioTransport(self._runtime, self._settings, b"", _nothing, _silence)
            self._apart.append(transport)
            return transport, True
        self._turn += 1
        return self._apart[self._turn % MOST_TRANSPORTS], False


def _nothing(message: bytes) -> None:
    """Hear nothing: these transports do not subscribe."""


def _silence() -> None:
    """Miss nothing either."""

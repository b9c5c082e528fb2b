"""The asyncio transport of strict mode: each acquire that waits for replicas has its own connection.

``WAIT`` is about the writes of its own connection, and the server reads nothing more from a connection that waits. On
the connection that all tasks share, one stalled replica would delay the renewals of all.
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
"""Most connections that wait; more tasks than these share them, and wait for each other."""


class WaitTransport(AioTransport):
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        super().__init__(runtime, settings, channel, on_message, on_silence)
        self._waiting_transports: list[AioTransport] = []
        self._free: list[AioTransport] = []
        self._turn = 0

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if not commands or not waits(commands[-1]):
            return await super().call_all(commands, within=within)
        transport, alone = self._take()
        answered = False
        try:
            replies = await transport.call_all(commands, within=within)
            answered = True
            return replies
        finally:
            if not answered:
                transport.hang_up()  # it may still wait, and the next user would wait with it
            if alone:
                self._free.append(transport)

    def hang_up(self) -> None:
        for transport in self._waiting_transports:
            transport.hang_up()
        super().hang_up()

    async def close(self) -> None:
        await super().close()
        for transport in self._waiting_transports:
            await transport.close()

    def after_fork(self, channel: bytes) -> None:
        super().after_fork(channel)
        for transport in self._waiting_transports:
            transport.after_fork(b"")
        self._free = list(self._waiting_transports)

    def _take(self) -> tuple[AioTransport, bool]:
        """Return a transport, and whether it is unused by others; above `MOST_TRANSPORTS` they are shared."""
        if self._free:
            return self._free.pop(), True
        if len(self._waiting_transports) < MOST_TRANSPORTS:
            transport = AioTransport(self._runtime, self._settings, b"", _nothing, _silence)
            self._waiting_transports.append(transport)
            return transport, True
        self._turn += 1
        return self._waiting_transports[self._turn % MOST_TRANSPORTS], False


def _nothing(message: bytes) -> None:
    """Ignore messages: these transports do not subscribe."""


def _silence() -> None:
    """Ignore the end of a subscription: there is none."""

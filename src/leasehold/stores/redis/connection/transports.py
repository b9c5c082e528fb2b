"""Which transport a client of one server needs, by its runtime and settings; and that of strict mode under asyncio.

``WAIT`` is about the writes of its own connection, and the server reads nothing more from a connection that waits. On
the connection that all tasks share, one stalled replica would delay the renewals of all. So there each acquire that
waits for replicas has its own connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import Unsupported
from leasehold.stores.redis.connection.aio import AioTransport
from leasehold.stores.redis.connection.base import UNSUBSCRIBED, MakeTransport, OnMessage, OnSilence, Transport
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.strict.quorum import waits

MOST_TRANSPORTS = 32
"""Most connections that wait; more tasks than these share them, and wait for each other."""


def single_transport(runtime: Runtime) -> MakeTransport:
    """Return the factory of the transport to one server.

    Raises:
        Unsupported: the runtime is simulated; its servers are models.
    """
    if runtime.flavor is Flavor.SIMULATED:
        raise Unsupported("a real Redis cannot be reached from the simulated runtime; use a memory: store there")
    return BlockingTransport if runtime.flavor is Flavor.SYNC else _aio_transport


def _aio_transport(
    runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
) -> Transport:
    kind = AioTransport if settings.strict is None else WaitTransport
    return kind(runtime, settings, channel, on_message, on_silence)


class WaitTransport(AioTransport):
    """The `Transport` of strict mode under asyncio: an acquire that waits for replicas has its own connection."""

    def _forget(self) -> None:
        super()._forget()
        self._waiting_transports: list[AioTransport] = []
        self._free: list[AioTransport] = []
        self._turn = 0

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if not commands or not waits(commands[-1]):
            return await super().call_all(commands, within=within)
        if self._closed:
            raise self._no_answer("the client is closed")
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
        ending = [transport._end_all() for transport in self._waiting_transports]  # before the first `await`
        await super().close()
        for each in ending:
            await self._closing(*each)

    def after_fork(self, channel: bytes) -> None:
        inherited = self._waiting_transports
        super().after_fork(channel)
        for transport in inherited:
            transport.after_fork(b"")
        self._waiting_transports, self._free = inherited, [*inherited]

    def _take(self) -> tuple[AioTransport, bool]:
        """Return a transport, and whether it is unused by others; above `MOST_TRANSPORTS` they are shared."""
        if self._free:
            return self._free.pop(), True
        if len(self._waiting_transports) < MOST_TRANSPORTS:
            transport = AioTransport(self._runtime, self._settings, *UNSUBSCRIBED)
            self._waiting_transports.append(transport)
            return transport, True
        self._turn += 1
        return self._waiting_transports[self._turn % MOST_TRANSPORTS], False

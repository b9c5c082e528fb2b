"""The asyncio wire of strict mode: what waits for replicas does so on a connection of its own.

``WAIT`` speaks of what its own connection wrote, and the server reads nothing more from a connection that waits. On the
one connection that all tasks share, one stalled replica would hold up everybody's renewals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.aio import AioWire
from leasehold.stores.redis.connection.base import OnMessage, OnSilence, Wire
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.strict.quorum import waits

MOST_WIRES = 32
"""Connections that wait, at most; more tasks than these share them, and wait for each other."""


def aio_wire(
    runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
) -> Wire:
    """Return the asyncio wire that these settings need."""
    kind = AioWire if settings.strict is None else WaitingWire
    return kind(runtime, settings, channel, on_message, on_silence)


class WaitingWire(AioWire):
    """See `leasehold.stores.redis.connection.base.Wire`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        super().__init__(runtime, settings, channel, on_message, on_silence)
        self._apart: list[AioWire] = []
        self._free: list[AioWire] = []
        self._turn = 0

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if not commands or not waits(commands[-1]):
            return await super().call_all(commands, within=within)
        wire, alone = self._taken()
        answered = False
        try:
            replies = await wire.call_all(commands, within=within)
            answered = True
            return replies
        finally:
            if not answered:
                wire.hang_up()  # it may wait still, and whoever uses it next would wait with it
            if alone:
                self._free.append(wire)

    def hang_up(self) -> None:
        for wire in self._apart:
            wire.hang_up()
        super().hang_up()

    async def close(self) -> None:
        await super().close()
        for wire in self._apart:
            await wire.close()

    def after_fork(self, channel: bytes) -> None:
        super().after_fork(channel)
        for wire in self._apart:
            wire.after_fork(b"")
        self._free = list(self._apart)

    def _taken(self) -> tuple[AioWire, bool]:
        """Take a wire that nobody uses, or share one if there are `MOST_WIRES`; say whether it is for us alone."""
        if self._free:
            return self._free.pop(), True
        if len(self._apart) < MOST_WIRES:
            wire = AioWire(self._runtime, self._settings, b"", _nothing, _silence)
            self._apart.append(wire)
            return wire, True
        self._turn += 1
        return self._apart[self._turn % MOST_WIRES], False


def _nothing(message: bytes) -> None:
    """Hear nothing: these wires do not subscribe."""


def _silence() -> None:
    """Miss nothing either."""

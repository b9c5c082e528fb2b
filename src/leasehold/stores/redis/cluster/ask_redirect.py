"""The wire to a node of a cluster for slots that are on their way to it: it says ``ASKING`` before each command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold.stores.redis.connection.base import Ear, ReplyError, Wire, pack

ASKING = pack(b"ASKING")
"""Lets the next command on the connection have keys of a slot that the node does not own yet."""


class AskingWire:
    """See `leasehold.stores.redis.connection.base.Wire`. It has no messages: a subscription belongs to no slot."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def call(self, command: bytes, *, within: float) -> Any:
        permission, reply = await self._wire.call_all([ASKING, command], within=within)
        return permission if isinstance(permission, ReplyError) else reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        asked = [part for command in commands for part in (ASKING, command)]
        replies = await self._wire.call_all(asked, within=within)
        pairs = zip(replies[::2], replies[1::2], strict=True)
        return [permission if isinstance(permission, ReplyError) else reply for permission, reply in pairs]

    async def listen(self, within: float) -> int:
        return await self._wire.listen(within)

    def epoch(self) -> int:
        return self._wire.epoch()

    async def hear(self, ear: Ear, timeout: float) -> None:
        await self._wire.hear(ear, timeout)

    def nudge(self, ear: Ear) -> None:
        self._wire.nudge(ear)

    def disturbed(self) -> bool:
        return self._wire.disturbed()

    def hang_up(self) -> None:
        self._wire.hang_up()

    def retune(self, channel: bytes) -> None:
        self._wire.retune(channel)

    def facts(self) -> dict[str, str]:
        return self._wire.facts()

    async def close(self) -> None:
        await self._wire.close()

    def after_fork(self, channel: bytes) -> None:
        self._wire.after_fork(channel)

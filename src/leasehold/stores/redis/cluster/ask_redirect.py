"""The transport to a cluster node that is importing a slot: it sends ``ASKING`` before each command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError, Subscriber, Transport, pack

ASKING = pack(b"ASKING")
"""Allows the next command on the connection keys of a slot that the node is importing."""


class AskingTransport:
    """See `leasehold.stores.redis.connection.base.Transport`. A subscription belongs to no slot, so it is unchanged."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def call(self, command: bytes, *, within: float) -> Any:
        permission, reply = await self._transport.call_all([ASKING, command], within=within)
        return permission if isinstance(permission, ReplyError) else reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        asked = [part for command in commands for part in (ASKING, command)]
        replies = await self._transport.call_all(asked, within=within)
        pairs = zip(replies[::2], replies[1::2], strict=True)
        return [permission if isinstance(permission, ReplyError) else reply for permission, reply in pairs]

    async def listen(self, within: float) -> int:
        return await self._transport.listen(within)

    def generation(self) -> int:
        return self._transport.generation()

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        await self._transport.receive(subscriber, timeout)

    def notify(self, subscriber: Subscriber) -> None:
        self._transport.notify(subscriber)

    def has_unread(self) -> bool:
        return self._transport.has_unread()

    def hang_up(self) -> None:
        self._transport.hang_up()

    def set_channel(self, channel: bytes) -> None:
        self._transport.set_channel(channel)

    def facts(self) -> dict[str, str]:
        return self._transport.facts()

    async def close(self) -> None:
        await self._transport.close()

    def after_fork(self, channel: bytes) -> None:
        self._transport.after_fork(channel)

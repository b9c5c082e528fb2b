"""Calls of one Redis: scripts, brought to a server that lacks them, and what is done about its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import DEMOTED, ReplyError, Transport, pack, refused
from leasehold.stores.redis.scripts import Script
from leasehold.stores.redis.scripts.commands import Command


class Calls:
    """Calls over one transport.

    Args:
        transport: what it calls through.
        where: the server, for messages to people.
        host: its host; "" if it has none.
        check: finds out, within so many seconds, which right is missing, and raises an error that names it.

    """

    def __init__(self, transport: Transport, where: str, host: str, check: Callable[[float], Awaitable[None]]) -> None:
        self._transport = transport
        self._where = where
        self._host = host
        self._check = check

    async def run(self, script: Script, those: Sequence[bytes], args: Sequence[bytes], *, within: float) -> Any:
        """Run a script on these keys, and return its reply."""
        packed = script.by_digest(those, args)
        reply = await self._transport.call(packed, within=within)
        return await self.once_more(script, packed, reply, within) if isinstance(reply, ReplyError) else reply

    async def once_more(self, script: Script, packed: bytes, error: ReplyError, within: float) -> Any:
        """Bring the script if that is what the server lacks, and return its reply."""
        reply = error
        if error.code == "NOSCRIPT":
            reply = await self._transport.call(script.in_full(packed), within=within)  # it answered, so it is there
        if isinstance(reply, ReplyError):
            raise await self.refused(reply, within)
        return reply

    async def run_all(self, asked: Sequence[Command], *, within: float) -> list[Any]:
        """Run scripts, each by itself; return their replies in order, of which some may be errors."""
        packed = [script.by_digest(mutex, args) for script, mutex, args in asked]
        replies = await self._transport.call_all(packed, within=within)
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                script, mutex, args = asked[index]
                replies[index] = await self._transport.call(script.by_text(mutex, args), within=within)
        return replies

    async def refused(self, reply: ReplyError, within: float) -> StoreUnavailable:
        """Return the error to raise for an answer that is one."""
        if reply.code == "NOPERM":  # of a script, a server does not say which right: find out
            await self._check(within)
        if reply.code in DEMOTED:
            self._transport.hang_up()  # the next call connects anew, and asks whether this is the primary
        return refused(self._where, reply, self._host)

    async def names(self, namespace: str, prefix: str, *, within: float) -> AsyncIterator[str]:
        """Yield names in use that begin so, each once; ``within``: seconds for each part of them."""
        cursor, seen = b"0", set[str]()
        pattern = keys.lock_pattern(namespace, prefix)
        while True:
            scan = pack(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
            reply = await self._transport.call(scan, within=within)
            if isinstance(reply, ReplyError):
                raise refused(self._where, reply)
            cursor = reply[0]
            for key in reply[1]:
                name = keys.name_of(key)
                if name not in seen:
                    seen.add(name)
                    yield name
            if cursor == b"0":
                return

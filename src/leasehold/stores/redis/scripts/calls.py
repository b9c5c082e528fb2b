"""Script calls to one Redis: a script that the server lacks is sent in full, and error replies become exceptions."""

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
        transport: to the server.
        where: the server, for messages to people.
        host: its host; "" if it has none.
        check: finds out, within so many seconds, which access right is missing, and raises an error that names it.

    """

    def __init__(self, transport: Transport, where: str, host: str, check: Callable[[float], Awaitable[None]]) -> None:
        self._transport = transport
        self._where = where
        self._host = host
        self._check = check

    async def run(self, script: Script, script_keys: Sequence[bytes], args: Sequence[bytes], *, within: float) -> Any:
        """Run a script on these keys, and return its reply."""
        packed = script.by_digest(script_keys, args)
        reply = await self._transport.call(packed, within=within)
        return await self.once_more(script, packed, reply, within) if isinstance(reply, ReplyError) else reply

    async def once_more(self, script: Script, packed: bytes, error: ReplyError, within: float) -> Any:
        """Send the script in full if the server lacks it, and return its reply.

        Raises:
            StoreUnavailable: the server answered with another error.

        """
        reply = error
        if error.code == "NOSCRIPT":
            reply = await self._transport.call(script.in_full(packed), within=within)  # the connection works
        if isinstance(reply, ReplyError):
            raise await self.refused(reply, within)
        return reply

    async def run_all(self, commands: Sequence[Command], *, within: float) -> list[Any]:
        """Run scripts, each by itself; return their replies in order. Some may be a `ReplyError`."""
        packed = [script.by_digest(script_keys, args) for script, script_keys, args in commands]
        replies = await self._transport.call_all(packed, within=within)
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                script, script_keys, args = commands[index]
                replies[index] = await self._transport.call(script.by_text(script_keys, args), within=within)
        return replies

    async def refused(self, reply: ReplyError, within: float) -> StoreUnavailable:
        """Return the exception to raise for an error reply."""
        if reply.code == "NOPERM":  # a server does not say which right a script lacks: find out
            await self._check(within)
        if reply.code in DEMOTED:
            self._transport.hang_up()  # the next call connects anew, and checks that this is the primary
        return refused(self._where, reply, self._host)

    async def names(self, namespace: str, prefix: str, *, within: float) -> AsyncIterator[str]:
        """Yield the names in use that begin with ``prefix``, each once; ``within``: seconds for each SCAN."""
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

"""Script calls to one Redis: a script that the server lacks is sent in full, and error replies become exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from leasehold._model import View
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import DEMOTED, ReplyError, Transport, refused
from leasehold.stores.redis.key_walk import walk
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
        self.moving: Callable[[str, float], Awaitable[View]] | None = None
        """On a cluster: looks at a name whose slot is migrating, within so many seconds."""

    async def run(self, script: Script, script_keys: Sequence[bytes], args: Sequence[bytes], *, within: float) -> Any:
        """Run a script on these keys, and return its reply."""
        packed = script.by_digest(script_keys, args)
        reply = await self._transport.call(packed, within=within)
        return await self.resend_if_lacking(script, packed, reply, within) if isinstance(reply, ReplyError) else reply

    async def resend_if_lacking(self, script: Script, packed: bytes, error: ReplyError, within: float) -> Any:
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
        return await run_all(self._transport, commands, within)

    async def refused(self, reply: ReplyError, within: float) -> StoreUnavailable:
        """Return the exception to raise for an error reply."""
        if reply.code == "NOPERM":  # a server does not say which right a script lacks: find out
            await self._check(within)
        if reply.code in DEMOTED:
            self._transport.hang_up()  # the next call connects anew, and checks that this is the primary
        return refused(self._where, reply, self._host)

    def names(self, namespace: str, prefix: str, *, within: float) -> AsyncIterator[str]:
        return names(self._transport, self._where, keys.lock_pattern(namespace, prefix), within)


async def run_all(transport: Transport, commands: Sequence[Command], within: float) -> list[Any]:
    """Run scripts in one write; return their replies in order, of which some may be a `ReplyError`.

    Scripts that the server lacks are sent again: the first call of each with its text; then all of them, since the
    server may flush its scripts in between.
    """
    replies = await transport.call_all(
        [script.by_digest(words, args) for script, words, args in commands], within=within
    )
    for whole in (False, True):
        lacking = [at for at, reply in enumerate(replies) if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT"]
        if not lacking:
            break
        packed, known = list[bytes](), set[bytes]()
        for at in lacking:
            script, script_keys, args = commands[at]
            by_text = whole or script.digest not in known
            packed.append(script.by_text(script_keys, args) if by_text else script.by_digest(script_keys, args))
            known.add(script.digest)
        for at, reply in zip(lacking, await transport.call_all(packed, within=within), strict=True):
            replies[at] = reply
    return replies


async def names(transport: Transport, where: str, pattern: bytes, within: float) -> AsyncIterator[str]:
    """Yield the names whose lock keys match the pattern, each once; ``within``: seconds for each SCAN.

    Raises:
        StoreUnavailable: no answer, or a refusal.
    """
    try:
        async for some, _ in walk(transport, pattern, within):
            for key in some:
                yield keys.name_of(key)
    except ReplyError as error:
        raise refused(where, error) from None

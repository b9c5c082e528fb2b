"""A walk over the keys of a server: SCAN, in steps, each key once."""

from __future__ import annotations

from collections.abc import AsyncIterator

from leasehold.stores.redis.connection.base import ReplyError, Transport, pack


async def walk(
    transport: Transport, pattern: bytes, within: float, *, count: int = 1000, steps: int = 0
) -> AsyncIterator[tuple[list[bytes], bool]]:
    """Yield the keys that match the pattern, step by step, and whether the step was the last of all.

    A step looks at about ``count`` keys, and takes ``within`` seconds at most. ``steps``: the most steps, if not 0.

    Raises:
        ReplyError: the server refused a step.
        StoreUnavailable: no answer.
    """
    cursor, seen, done = b"0", set[bytes](), 0
    while True:
        command = pack(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % count)
        reply = await transport.call(command, within=within)
        if isinstance(reply, ReplyError):
            raise reply
        cursor, done = reply[0], done + 1
        new = [key for key in dict.fromkeys(reply[1]) if key not in seen]
        seen.update(new)
        yield new, cursor == b"0"
        if cursor == b"0" or done == steps:
            return

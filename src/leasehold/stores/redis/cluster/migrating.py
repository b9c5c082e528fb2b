"""Reading a name whose slot is migrating: key by key, since no script may read keys of which some have left.

While a slot migrates, each node serves only the keys that it has. The other keys of a name, and keys that do not exist,
are at the target of the migration. Acquires and releases wait for its end, so little changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from leasehold._model import View
from leasehold.stores.redis import inspecting, keys
from leasehold.stores.redis.connection.base import pack

KEEP = 3600000
"""Milliseconds for which a lock's key outlives it, with its field ``a``, as in ``scripts/keep.lua``."""


async def view(read: Callable[[bytes], Awaitable[Any]], namespace: str, name: str) -> View:
    """Return what ``scripts/inspect.lua`` shows of a name; ``read`` sends a command on one key to where that key is."""

    async def scores(key: bytes) -> list[tuple[bytes, float]]:
        return [(ticket, score) for ticket, score in await read(pack(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"))]

    async def fields(key: bytes, tickets: list[bytes]) -> dict[bytes, Any]:
        return dict(zip(tickets, await read(pack(b"HMGET", key, *tickets)), strict=True)) if tickets else {}

    lock, queue, beat, waiters, holders, terms = keys.shared_keys(namespace, name)
    seconds, microseconds = await read(pack(b"TIME"))
    state = await read(pack(b"HMGET", lock, b"t", b"f", b"l", b"d", b"o", b"m", b"k", b"b", b"a"))
    kept = KEEP + int(state.pop() or 0)
    blocked = await read(pack(b"PTTL", lock)) - kept if state[0] is not None else 0  # empty during a lock delay
    queued, held = await scores(queue), await scores(holders)
    beats = dict(await scores(beat))
    of_waiters = await fields(waiters, [ticket for ticket, _ in queued])
    of_holders = await fields(terms, [ticket for ticket, _ in held])
    entries, shared = list[Any](), list[Any]()
    for ticket, order in queued:
        if of_waiters[ticket] is not None and ticket in beats:
            entries += [ticket, order, beats[ticket], of_waiters[ticket]]
    for ticket, expires in held:
        if of_holders[ticket] is not None:
            shared += [ticket, expires, of_holders[ticket]]
    return inspecting.view(name, [int(seconds) * 1000000 + int(microseconds), state, blocked, entries, shared])

"""Names that another release of leasehold keeps in another layout, see `commands.LAYOUT`."""

from __future__ import annotations

from contextlib import suppress

from leasehold._model import Finding, Severity
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError, Transport, pack
from leasehold.stores.redis.key_walk import walk
from leasehold.stores.redis.scripts.commands import LAYOUT, other_layout

SUBJECT = "layout of the keys"

MOST = 20
"""Steps of a SCAN, of 500 keys each."""

WITHIN = 5.0
"""Seconds for each reply of the server."""


async def finding(transport: Transport, namespace: str) -> Finding:
    """Return the layout of the keys of a namespace; a warning if some have another one than this release.

    Raises:
        StoreUnavailable: no answer.
    """
    complete, found = False, dict[str, int]()
    with suppress(ReplyError):  # without the right to SCAN, not all was looked at
        async for locks, last in walk(transport, keys.lock_pattern(namespace, ""), WITHIN, count=500, steps=MOST):
            complete = last
            uses = await transport.call_all([pack(b"HGET", key, b"k") for key in locks], within=WITHIN) if locks else []
            for key, use in zip(locks, uses, strict=True):
                other = other_layout(use.decode("utf-8", "replace")) if isinstance(use, bytes) else None
                if other is not None:
                    found[keys.name_of(key)] = other
    looked = f"{LAYOUT}" if complete else f"{LAYOUT}, as far as the keys were looked at"
    if not found:
        return Finding(Severity.OK, SUBJECT, looked)
    name, other = min(found.items())
    means = "this release refuses such a name while it is in use"
    remedy = "run the same release everywhere"
    shown = f"{looked}; {len(found)} of the names have another one, as {name!r}, which has {other}"
    return Finding(Severity.WARNING, SUBJECT, shown, means, remedy)

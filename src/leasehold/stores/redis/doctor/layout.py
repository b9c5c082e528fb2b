"""Names that another release of leasehold keeps in another layout, see `commands.LAYOUT`."""

from __future__ import annotations

from leasehold._model import Finding, Severity
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError, Transport, pack
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
    cursor, found = b"", dict[str, int]()
    for _ in range(MOST):
        scan = pack(b"SCAN", cursor or b"0", b"MATCH", keys.lock_pattern(namespace, ""), b"COUNT", b"500")
        reply = await transport.call(scan, within=WITHIN)
        if isinstance(reply, ReplyError):
            break  # without the right to SCAN, the cursor says that not all was looked at
        cursor, locks = reply
        uses = await transport.call_all([pack(b"HGET", key, b"k") for key in locks], within=WITHIN) if locks else []
        for key, use in zip(locks, uses, strict=True):
            other = other_layout(use.decode("utf-8", "replace")) if isinstance(use, bytes) else None
            if other is not None:
                found[keys.name_of(key)] = other
        if cursor == b"0":
            break
    looked = f"{LAYOUT}" if cursor == b"0" else f"{LAYOUT}, as far as the keys were looked at"
    if not found:
        return Finding(Severity.OK, SUBJECT, looked)
    name, other = min(found.items())
    means = "this release refuses such a name while it is in use"
    remedy = "run the same release everywhere"
    shown = f"{looked}; {len(found)} of the names have another one, as {name!r}, which has {other}"
    return Finding(Severity.WARNING, SUBJECT, shown, means, remedy)

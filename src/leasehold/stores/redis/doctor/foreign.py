"""Keys that are locks in the formats of other libraries: so that people find out which layout shares them.

A lock is recognised by the type of its key and by what the key contains. The value is never shown, since it frees the
lock. At most `MOST` keys are looked at.

A plain lock is a short random text, as many secrets are. The name of such a key may be a secret, too: that of a web
session is. So a list has a plain lock only if its key has a word for a lock in its name. `leasehold show` with the name
of a key describes any key.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, cast

from leasehold._model import Finding, Severity
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError, Transport, pack
from leasehold.stores.redis.key_walk import walk
from leasehold.stores.redis.scripts.commands import chunks

SUBJECT = "locks of other libraries"

MOST = 10_000
"""Keys of a server that are looked at."""

AT_ONCE = 500
"""Keys that are looked at in one round trip."""

SHOWN = 5
"""Locks that `finding` names."""

WITHIN = 5.0
"""Seconds for each reply of the server."""

FEW = 64
"""Fields of a hash, or bytes of a string, above which it is no lock."""

OWNER = re.compile(rb"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(:\d+)(?::write)?")
"""An owner of Redisson, of ``layout=redisson`` too."""

SEMAPHORE = re.compile(r"\{(.+)\}:timeout|(.*\{.*):timeout")
"""The key of Redisson's permits that are out."""

PLAIN = re.compile(
    rb"[0-9a-f]{12}1[0-9a-f]{3}[89ab][0-9a-f]{15}"  # redis-py: the hexadecimal of a uuid of version 1
    rb"|[0-9a-f]{32}|[0-9A-Za-z]{22}|[0-9A-Za-z+/]{22}=="  # node-redlock, redlock-py, redsync
)

SIGNALLED_BEFORE = "lock:"
"""What python-redis-lock puts before a name."""

SIGNALLED = re.compile(rf"{SIGNALLED_BEFORE}(.+)", re.DOTALL)
"""The key of a lock of python-redis-lock, by its name."""

SIGNALLED_ID = re.compile(rb"[0-9A-Za-z+/]{24}")
"""The value of such a key: 18 bytes in base64."""

NAMED = re.compile(r"(?i:(?<![a-z])(red)?(locks?|mutex|lease)(?![a-z]))|[a-z0-9](Lock|Mutex|Lease)(?![a-z])")
"""A part of a key that calls itself a lock."""

NAMED_OR_NOT = re.compile("")
"""A part of every key."""


async def look(transport: Transport, prefix: str, *, exact: bool = False) -> list[str]:
    """Describe the keys that begin with ``prefix``, or are it, and look like locks of other libraries.

    The same of those that python-redis-lock makes of such names.

    Without the rights that it needs, it finds nothing.

    Raises:
        StoreUnavailable: no answer.
    """
    found = list[str]()
    named = repr(prefix) if exact else repr(prefix)[:-1]
    if exact:
        permits = f"{prefix if '{' in prefix else '{' + prefix + '}'}:timeout"  # a semaphore itself is just a number
        found += await _some(transport, [prefix.encode(), permits.encode()], NAMED_OR_NOT)
        signalled = await _some(transport, [f"{SIGNALLED_BEFORE}{prefix}".encode()], NAMED)
        return found + [text for text in signalled if text.startswith(named)]
    async for some in _keys(transport, prefix):
        found += await _some(transport, some, NAMED)
    if prefix:
        async for some in _keys(transport, SIGNALLED_BEFORE + prefix):
            found += [text for text in await _some(transport, some, NAMED) if text.startswith(named)]
    return sorted(set(found))


async def finding(transport: Transport) -> Finding | None:
    """Return a note on the locks of other libraries on this server; None if there are none."""
    found = await look(transport, "")
    if not found:
        return None
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    means = "a lock of leasehold with the same name does not exclude their holders"
    return Finding(Severity.NOTE, SUBJECT, "; ".join(found[:SHOWN]) + more, means, "see docs/interop.md")


async def _keys(transport: Transport, prefix: str) -> AsyncIterator[Sequence[bytes]]:
    pattern = re.sub(rb"([\\*?\[\]])", rb"\\\1", prefix.encode()) + b"*"
    ours = keys.PREFIX.encode() + b":"
    with suppress(ReplyError):
        async for new, _ in walk(transport, pattern, WITHIN, count=AT_ONCE, steps=MOST // AT_ONCE):
            for some in chunks([key for key in new if not key.startswith(ours)], AT_ONCE):
                yield some


async def _some(transport: Transport, some: Sequence[bytes], named: re.Pattern[str]) -> list[str]:
    """Describe those of some keys that look like locks; plain ones only where the key matches ``named``."""
    types = await _ask(transport, [(b"TYPE", key) for key in some])
    sizes = {b"hash": b"HLEN", b"string": b"STRLEN", b"zset": b"ZCARD"}
    known = [(key, _bytes(type_)) for key, type_ in zip(some, types, strict=True) if _bytes(type_) in sizes]
    counts = await _ask(transport, [(sizes[type_], key) for key, type_ in known])
    small = [one for one, count in zip(known, counts, strict=True) if isinstance(count, int) and 0 < count <= FEW]
    reads = {b"hash": (b"HKEYS",), b"string": (b"GET",), b"zset": (b"ZRANGE", b"0", b"0")}
    values = await _ask(transport, [(reads[type_][0], key, *reads[type_][1:]) for key, type_ in small])
    lives = await _ask(transport, [(b"PTTL", key) for key, _ in small])
    return [
        text
        for (key, type_), value, left in zip(small, values, lives, strict=True)
        if isinstance(left, int) and left != -2 and (text := _described(key, type_, value, left, named))
    ]


def _described(key: bytes, type_: bytes, value: Any, left: int, named: re.Pattern[str]) -> str:
    name = key.decode("utf-8", "backslashreplace")
    held = f"held for another {left / 1000:.1f} s" if left >= 0 else "held"
    if type_ == b"string" and isinstance(value, bytes) and PLAIN.fullmatch(value) and named.search(name):
        of = "redis-py, redlock-py, redsync or node-redlock"
        return f"{name!r} looks like a plain lock, as of {of}, {held}; to share it, use layout=plain"
    if type_ == b"string" and isinstance(value, bytes) and SIGNALLED_ID.fullmatch(value):
        base, share = SIGNALLED.fullmatch(name), "to share it, use layout=python-redis-lock"
        return f"{base[1]!r} looks like a lock of python-redis-lock, {held}; {share}" if base else ""
    parts = cast(list[bytes], value) if isinstance(value, list) else []
    what = ""
    if type_ == b"hash" and (owners := _owners(parts)):
        what = f"{'read-write ' if b'mode' in parts else ''}lock, {held.replace('held', f'held by {owners}', 1)}"
    elif type_ == b"zset" and parts and len(parts[0]) == 16 and (base := SEMAPHORE.fullmatch(name)):
        name, what = base[1] or base[2], "semaphore, of which permits are out"
    return f"{name!r} is a Redisson {what}; to share it, use layout=redisson" if what else ""


def _owners(fields: Sequence[bytes]) -> str:
    """Return the owners in the hash of a lock, shortened; empty if it is none."""
    found = [OWNER.fullmatch(field) for field in fields if field != b"mode"]
    return ", ".join(f"{owner[1].decode()}…{owner[2].decode()}" for owner in found if owner) if all(found) else ""


async def _ask(transport: Transport, commands: Sequence[tuple[bytes, ...]]) -> Sequence[Any]:
    return await transport.call_all([pack(*command) for command in commands], within=WITHIN) if commands else []


def _bytes(reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) else str(reply).encode()

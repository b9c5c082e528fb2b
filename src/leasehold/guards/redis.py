"""A guard for a key of Redis: it is set only by a holder whose token is not below the last one's.

The fence is in a second key, in the same slot of a cluster; one script compares and writes both. Tokens are
compared as texts of digits, because the numbers of scripts are exact to 53 bits only.
"""

from __future__ import annotations

import math
from typing import Any

from leasehold.guards import check_fence, check_token

SCRIPT = """
local seen, mine = redis.call('GET', KEYS[2]) or '0', ARGV[1]
if #seen > #mine or (#seen == #mine and seen > mine) then
    return seen
end
if ARGV[3] == '' then
    redis.call('SET', KEYS[2], mine)
    redis.call('SET', KEYS[1], ARGV[2])
else
    redis.call('SET', KEYS[2], mine, 'PX', ARGV[3])
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return ''
"""
"""(the key, its fence) (token, value, ttl in milliseconds or nothing) → nothing, or the higher token that was seen."""


def write(client: Any, key: str, value: bytes | str, *, token: int, ttl: float | None = None) -> None:
    """Set ``key`` to ``value``, unless a newer holder has set it.

    Args:
        client: a ``redis.Redis`` or ``redis.RedisCluster``.
        key: any; its fence is `fence_key`.
        value: what to set it to.
        token: of your hold.
        ttl: seconds after which both keys expire; it must be longer than a holder may be late. None keeps the keys.

    Raises:
        Stale: a holder with a higher token has set it.
    """
    arguments = _arguments(key, value, token, ttl)
    seen = client.eval(SCRIPT, 2, *arguments)
    check_fence(repr(key), int(seen or 0), token)


async def awrite(client: Any, key: str, value: bytes | str, *, token: int, ttl: float | None = None) -> None:
    """Do what `write` does, with a client of ``redis.asyncio``."""
    arguments = _arguments(key, value, token, ttl)
    seen = await client.eval(SCRIPT, 2, *arguments)
    check_fence(repr(key), int(seen or 0), token)


def fence_key(key: str) -> str:
    """Return the name of the key with the fence: in the same slot.

    Raises:
        ValueError: there is none, because of a brace in the key.
    """
    start = key.find("{")
    if start >= 0 and key.find("}", start + 1) > start + 1:
        return f"{key}:fence"  # its hash tag selects the slot of both
    if not key or "{" in key or "}" in key:
        raise ValueError(f"a fence for {key!r} would lie in another slot; give the key a hash tag, as in {{stock}}:42")
    return f"{{{key}}}:fence"


def _arguments(key: str, value: bytes | str, token: int, ttl: float | None) -> tuple[Any, ...]:
    if ttl is not None and not (math.isfinite(ttl) and ttl > 0):
        raise ValueError(f"ttl must be above zero, not {ttl}")
    return key, fence_key(key), check_token(token), value, "" if ttl is None else max(1, round(ttl * 1000))

"""The Redis keys of a namespace and name: injective, and all keys of one name in one slot of a cluster."""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import quote, unquote

PREFIX = "leasehold"

SLOTS = 16384
"""Hash slots of a cluster."""

MOST_TRIES = 200_000
"""Numbers tried to find a key in a slot of a node: a node with a single slot is missed once in 100,000 times."""

_PLAIN_IN_NAME = "!#$&'()+,-./:;<=>@_|~"  # '{', '}', '%', glob characters, white space and controls are encoded
_is_plain = re.compile(f"[A-Za-z0-9{re.escape(_PLAIN_IN_NAME)}]*").fullmatch  # most names: nothing to encode
_PLAIN_IN_NAMESPACE = _PLAIN_IN_NAME.replace(":", "")  # the first ':' ends the namespace


def tag(namespace: str, name: str) -> str:
    """Return the part between braces, which decides the slot and identifies the name.

    It is percent-encoded UTF-8: never empty, without braces and blanks, and different for two different pairs of
    namespace and name.
    """
    return f"{_encoded(namespace)}:{name if _is_plain(name) else quote(name, safe=_PLAIN_IN_NAME)}"


@lru_cache(maxsize=64)
def _encoded(namespace: str) -> str:
    return quote(namespace, safe=_PLAIN_IN_NAMESPACE)


@lru_cache(maxsize=512)
def mutex_keys(namespace: str, name: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the keys of a mutex: lock, queue, beat (expiry of queue entries), waiters."""
    stem = f"{PREFIX}:{{{tag(namespace, name)}}}:".encode()
    return stem + b"lock", stem + b"queue", stem + b"beat", stem + b"waiters"


def lock_key(namespace: str, name: str) -> bytes:
    """Return the first key of a mutex, the only one that a renewal needs."""
    return f"{PREFIX}:{{{tag(namespace, name)}}}:lock".encode()


@lru_cache(maxsize=512)
def shared_keys(namespace: str, name: str) -> tuple[bytes, ...]:
    """Return the keys of a name with many holders: those of a mutex, holders, terms."""
    stem = f"{PREFIX}:{{{tag(namespace, name)}}}:"
    return (*mutex_keys(namespace, name), (stem + "holders").encode(), (stem + "terms").encode())


def share_keys(namespace: str, name: str) -> tuple[bytes, bytes, bytes]:
    """Return the keys of a name with many holders that a renewal needs: lock, holders, terms."""
    lock, _, _, _, holders, terms = shared_keys(namespace, name)
    return lock, holders, terms


@lru_cache(maxsize=4096)
def node_keys(namespace: str, name: str) -> tuple[bytes, ...]:
    """Return the keys of a name on one node of Redlock: vote, its waiters, the highest token."""
    stem = f"{PREFIX}:{{{tag(namespace, name)}}}:"
    return tuple((stem + role).encode() for role in ("vote", "votequeue", "votebeat", "votewaiters", "votetoken"))


@lru_cache(maxsize=64)
def memory_key(namespace: str, number: str) -> bytes:
    """Return the key that shows whether a Redlock node may have forgotten votes; see `marker_key`."""
    return f"{PREFIX}:{{{tag(namespace, number)}}}:memory".encode()


def cell_key(namespace: str, name: str) -> bytes:
    """Return the key of a cell."""
    return f"{PREFIX}:{{{tag(namespace, name)}}}:cell".encode()


def channel(namespace: str, client: str) -> bytes:
    """Return the channel on which one client is notified of its grants."""
    return f"{PREFIX}:{{{tag(namespace, '')}}}:wake:{client}".encode()


def shard_channel(namespace: str, client: str, number: int) -> bytes:
    """Return a channel of one client in one shard of a cluster; the number decides the slot."""
    return f"{PREFIX}:{{{tag(namespace, str(number))}}}:shard:{client}".encode()


def marker_key(namespace: str, number: str) -> bytes:
    """Return the key of strict mode's marker of one server; on a cluster the number decides the slot."""
    return f"{PREFIX}:{{{tag(namespace, number)}}}:marker".encode()


def number_where(true: Callable[[int], bool], start: int = 0) -> int | None:
    """Return the first number from ``start`` on that fits, such as a key in a node's slots; None if none does."""
    return next((number for number in range(start, start + MOST_TRIES) if true(number)), None)


def probe_keys(channel: bytes) -> tuple[bytes, ...]:
    """Return keys that belong to no name, to try commands on, at the server of a channel."""
    stem = channel[: channel.index(b"}:") + 2]
    return tuple(stem + b"rights:" + role for role in (b"lock", b"queue", b"beat", b"waiters"))


@lru_cache(maxsize=4096)
def slot(namespace: str, name: str) -> int:
    """Return the hash slot of all keys of a name."""
    return slot_of(lock_key(namespace, name))


def slot_of(key: bytes) -> int:
    """Return the hash slot of one of our keys or channels: that of the part between its braces."""
    return crc_hqx(key[key.index(b"{") + 1 : key.index(b"}")], 0) % SLOTS


def lock_pattern(namespace: str, prefix: str, role: str = "lock") -> bytes:
    """Return the glob pattern of the lock keys (or votes) of all names that begin with ``prefix``."""
    return f"{PREFIX}:{{{tag(namespace, prefix)}*}}:{role}".encode()


def name_of(lock_key: bytes) -> str:
    """Return the name that a lock key belongs to."""
    inside = lock_key.decode().partition("{")[2].rpartition("}")[0]
    return unquote(inside.partition(":")[2])


def key_rule(namespace: str) -> str:
    """Return the access rule for all keys of a namespace."""
    return f"~{PREFIX}:{{{tag(namespace, '')}*"


def channel_rule(namespace: str) -> str:
    """Return the access rule for all channels of a namespace."""
    return f"&{PREFIX}:{{{tag(namespace, '')}*"

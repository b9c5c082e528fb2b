"""From namespace and name to the keys of Redis: injective, and all keys of one name in one slot of a cluster."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

PREFIX = "leasehold"

_PLAIN_IN_NAME = "!#$&'()+,-./:;<=>@_|~"  # '{', '}', '%', glob characters, white space and controls are encoded
_PLAIN_IN_NAMESPACE = _PLAIN_IN_NAME.replace(":", "")  # the first ':' ends the namespace


def tag(namespace: str, name: str) -> str:
    """Return the part between braces that both decide the slot and identify the name.

    It is percent-encoded UTF-8, so it is never empty, has no brace and no blank, and two different pairs of namespace
    and name never share one.
    """
    return f"{quote(namespace, safe=_PLAIN_IN_NAMESPACE)}:{quote(name, safe=_PLAIN_IN_NAME)}"


@lru_cache(maxsize=4096)
def mutex_keys(namespace: str, name: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the keys of a mutex: lock, queue, beat, waiters."""
    stem = f"{PREFIX}:{{{tag(namespace, name)}}}:"
    return (
        (stem + "lock").encode(),
        (stem + "queue").encode(),
        (stem + "beat").encode(),
        (stem + "waiters").encode(),
    )


@lru_cache(maxsize=4096)
def shared_keys(namespace: str, name: str) -> tuple[bytes, ...]:
    """Return the keys of a name with many holders: those of a mutex, holders, terms."""
    stem = f"{PREFIX}:{{{tag(namespace, name)}}}:"
    return (*mutex_keys(namespace, name), (stem + "holders").encode(), (stem + "terms").encode())


def share_keys(namespace: str, name: str) -> tuple[bytes, bytes, bytes]:
    """Return those keys of a name with many holders that a renewal needs: lock, holders, terms."""
    lock, _, _, _, holders, terms = shared_keys(namespace, name)
    return lock, holders, terms


def cell_key(namespace: str, name: str) -> bytes:
    """Return the key of a cell."""
    return f"{PREFIX}:{{{tag(namespace, name)}}}:cell".encode()


def channel(namespace: str, client: str) -> bytes:
    """Return the channel on which one client is told of its grants."""
    return f"{PREFIX}:{{{tag(namespace, '')}}}:wake:{client}".encode()


def lock_pattern(namespace: str, prefix: str) -> bytes:
    """Return the glob pattern of the lock keys of all names that begin with ``prefix``."""
    return f"{PREFIX}:{{{tag(namespace, prefix)}*}}:lock".encode()


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

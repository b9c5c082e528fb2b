"""The requests that lock a key of a map, made of the driver's codecs; each with its answer's reader."""

from __future__ import annotations

from typing import Any, NamedTuple

from leasehold.stores.hazelcast.connection.modules import module
from leasehold.stores.hazelcast.connection.requests import Message, nothing

_try_lock: Any = module("protocol.codec.map_try_lock_codec")
_unlock: Any = module("protocol.codec.map_unlock_codec")
_force_unlock: Any = module("protocol.codec.map_force_unlock_codec")
_is_locked: Any = module("protocol.codec.map_is_locked_codec")


class Key(NamedTuple):
    """A key of a map, as the servers have it, and its partition."""

    map: str
    data: Any
    partition: int


def key_of(client: Any, map_: str, name: str) -> Key:
    """Return the key that Java has for the same string."""
    return Key(map_, client._serialization_service.to_data(name), client.partition_service.get_partition_id(name))


def try_lock(key: Key, thread: int, lease: float, wait: float, reference: int) -> Message:
    """Take a key for ``lease`` seconds, and wait for it for ``wait`` seconds; the answer is whether it was taken."""
    lease_ms, wait_ms = max(1, round(lease * 1000)), round(wait * 1000)
    request = _try_lock.encode_request(key.map, key.data, thread, lease_ms, wait_ms, reference)
    return request, _try_lock.decode_response


def unlock(key: Key, thread: int, reference: int) -> Message:
    """Give a key back, once for each time that it was taken."""
    return _unlock.encode_request(key.map, key.data, thread, reference), nothing


def force_unlock(key: Key, reference: int) -> Message:
    """Free a key, whoever has it."""
    return _force_unlock.encode_request(key.map, key.data, reference), nothing


def is_locked(key: Key) -> Message:
    """Ask whether anybody has a key."""
    return _is_locked.encode_request(key.map, key.data), _is_locked.decode_response

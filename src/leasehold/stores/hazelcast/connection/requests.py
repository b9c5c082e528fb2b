"""The requests of Hazelcast's protocol that locks need, made of the driver's codecs; each with its answer's reader.

The driver's own ``FencedLock`` is not used: its owner is the calling thread. Here each ticket is an owner, so that two
tasks of one thread exclude each other. Each request has an id, which makes it safe to repeat.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from leasehold.stores.hazelcast.connection.modules import module


def _codec(name: str) -> Any:
    return module(f"protocol.codec.{name}_codec")


_lock, _try_lock, _unlock = _codec("fenced_lock_lock"), _codec("fenced_lock_try_lock"), _codec("fenced_lock_unlock")
_ownership = _codec("fenced_lock_get_lock_ownership")
_create, _close, _beat = (_codec(f"cp_session_{what}_session") for what in ("create", "close", "heartbeat"))
_group = _codec("cp_group_create_cp_group")
_builtin: Any = module("protocol.builtin")
_message: Any = module("protocol.client_message")
_group_id: Any = module("protocol.codec.custom.raft_group_id_codec").RaftGroupIdCodec

LIST_OBJECTS = 0x220600
"""The number of CPSubsystem.GetCPObjectInfos, for which the driver has no codec."""

LOCK_SERVICE = "hz:raft:lockService"

Message = tuple[Any, Any]
"""A request, and the reader of its answer."""


def nothing(message: Any) -> None:
    """Read an answer without content."""


class Ownership(NamedTuple):
    """The owner of a lock: its fence, 0 if the lock is free, and the session and the thread that hold it."""

    fence: int
    session: int
    thread: int


def group(proxy: str) -> Message:
    """Return the CP group of a name, and make it if there is none."""
    return _group.encode_request(proxy), _group.decode_response


def create_session(group: Any, client: str) -> Message:
    """Begin a session; the answer has ``session_id``, ``ttl_millis`` and ``heartbeat_millis``."""
    return _create.encode_request(group, client), _create.decode_response


def close_session(group: Any, session: int) -> Message:
    """End a session, and free its locks."""
    return _close.encode_request(group, session), _close.decode_response


def beat(group: Any, session: int) -> Message:
    """Set a session's time to live to its full length."""
    return _beat.encode_request(group, session), nothing


def lock(group: Any, name: str, session: int, thread: int, uid: Any) -> Message:
    """Wait for a lock; the answer is the fence."""
    return _lock.encode_request(group, name, session, thread, uid), _lock.decode_response


def try_lock(group: Any, name: str, session: int, thread: int, uid: Any) -> Message:
    """Take a lock if it is free; the answer is the fence, or 0."""
    return _try_lock.encode_request(group, name, session, thread, uid, 0), _try_lock.decode_response


def unlock(group: Any, name: str, session: int, thread: int, uid: Any) -> Message:
    """Release a lock, or end the owner's wait for it; the answer is whether the owner still has it."""
    return _unlock.encode_request(group, name, session, thread, uid), _unlock.decode_response


def ownership(group: Any, name: str) -> Message:
    """Ask for the owner of a lock."""

    def read(message: Any) -> Ownership:
        found = _ownership.decode_response(message)
        return Ownership(found["fence"], found["session_id"], found["thread_id"])

    return _ownership.encode_request(group, name), read


def names(group: Any) -> Message:
    """List the locks of a group, free ones too."""
    size = _message.REQUEST_HEADER_SIZE + 1
    buffer = _message.create_initial_buffer(size, LIST_OBJECTS)
    _group_id.encode(buffer, group)
    _builtin.StringCodec.encode(buffer, LOCK_SERVICE, True)

    def read(message: Any) -> list[str]:
        message.next_frame()
        return list(_builtin.ListMultiFrameCodec.decode(message, _builtin.StringCodec.decode))

    return _message.OutboundMessage(buffer, True), read

"""Redisson's locks: keys that its own clients read and write, and a message at each release.

Redisson's owner is ``<uuid of the client>:<number of the thread>``, and its scripts never parse it. Ours has a new uuid
for each acquisition: then a repeated claim finds itself. Redisson's scripts would count it up, and one release would
leave it held.

A waiter subscribes to the lock's channel, claims again when that is confirmed, and then at each message: nothing polls.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from uuid import UUID

from leasehold._model import Capabilities, Kind, LockMode, Ticket, ticket_id
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.scripts import Scripts

CAPABILITIES = Capabilities(
    shared=True,
    permits=True,
    fair_shared=False,
    upgrades=False,
    lock_delay=False,
    cells=False,
    hands_over=False,
    crash_bound="within the lease + 250 ms (permits: + 1.25 s)",
    why_not="layout=redisson keeps what the locks of Redisson keep: leave it out, or leave out layout= where no Java "
    "program shares the name",
)

OWNER = ":1"
"""What follows the uuid in an owner of ours: in Redisson's, the number of a thread."""

WRITE = ":write"
"""What follows the owner in the field of a writer."""

TOPICS = {
    Kind.MUTEX: b"redisson_lock__channel:",
    Kind.READ_WRITE: b"redisson_rwlock:",
    Kind.SEMAPHORE: b"redisson_sc:",
}
"""What the channels of each kind of lock begin with."""

PARTS = {Kind.MUTEX: "redisson", Kind.READ_WRITE: "redisson_rw", Kind.SEMAPHORE: "redisson_permits"}
"""The layout's part of the scripts for each kind of lock."""


class Redisson(Layout):
    """The keys and owners of Redisson."""

    @cached_property
    def _scripts(self) -> Mapping[Kind, Scripts]:
        more = ("sharded",) if self.clustered else ()
        return {kind: Scripts.of(part, *more) for kind, part in PARTS.items()}

    def on_cluster(self) -> Layout:
        return replace(self, clustered=True)

    def scripts_of(self, kind: Kind) -> Scripts:
        return self._scripts[kind]

    def keys_of(self, namespace: str, name: str, ticket: Ticket, *, renews: bool = False) -> Sequence[bytes]:
        mode = ticket.terms.mode
        if not self.clustered or mode.kind is Kind.MUTEX:
            return super().keys_of(namespace, name, ticket, renews=renews)
        lock, side, *rest = self.keys(namespace, name, mode.kind)
        if renews:
            rest[:2] = side, side
        return [lock, side, *rest, *self._keys_of_holder(lock, side, ticket)]

    def _keys_of_holder(self, lock: bytes, side: bytes, ticket: Ticket) -> Sequence[bytes]:
        """Return the keys of a holder of its own. The scripts name them; on a cluster the node is to look for them."""
        mode, id_ = ticket.terms.mode, self.id_in(ticket).encode()
        if mode.kind is Kind.SEMAPHORE:
            return [side + b":" + id_.partition(b":")[0]]
        return [side + b":" + id_, *([] if mode.exclusive else [braced(lock) + b":" + id_ + b":rwlock_timeout:1"])]

    def more_keys(self, lock: bytes, kind: Kind) -> Sequence[bytes]:
        match kind:
            case Kind.MUTEX:
                return tuple(b"redisson_lock_%s:%s" % (what, braced(lock)) for what in (b"token", b"queue", b"timeout"))
            case Kind.READ_WRITE:
                return ()
            case Kind.SEMAPHORE:
                return (braced(lock) + b":timeout",)

    def keys_inside(self, lock: bytes, kind: Kind) -> Sequence[bytes]:
        return (braced(lock) + b":hold",) if kind is Kind.READ_WRITE else ()

    def topic(self, lock: bytes, ticket: Ticket) -> bytes:
        mode = ticket.terms.mode
        owner = b":" + self.id_in(ticket).encode() if mode.fair else b""
        return TOPICS[mode.kind] + braced(lock) + owner

    def wakes_all(self, topic: bytes) -> bool:
        return not topic.startswith(TOPICS[Kind.MUTEX])  # the first may be one that must wait for more than the others

    def claimed_with(self, ticket: Ticket) -> bytes:
        mode = ticket.terms.mode
        match mode.kind:
            case Kind.MUTEX:
                return b"%d" % mode.fair
            case Kind.READ_WRITE:
                return f"{self.id_of(ticket.alongside)}{WRITE}".encode() if ticket.alongside else b""
            case Kind.SEMAPHORE:
                return b"of %d" % mode.limit

    def id_in(self, ticket: Ticket) -> str:
        mode = ticket.terms.mode
        if mode.kind is Kind.SEMAPHORE:
            return f"{bytes_of(ticket.id).hex()}:{mode.permits}"
        return self.id_of(ticket.id) + (WRITE if mode.kind is Kind.READ_WRITE and mode.exclusive else "")

    def id_of(self, ticket: str) -> str:
        return f"{UUID(bytes=bytes_of(ticket))}{OWNER}"

    def ticket_of(self, holder: str) -> str:
        if found := re.fullmatch(r"([0-9a-f]{32}):\d+", holder):
            return ticket_id(bytes.fromhex(found[1]))
        owner = holder.removesuffix(WRITE)
        try:
            return ticket_id(UUID(owner.removesuffix(OWNER)).bytes) if owner.endswith(OWNER) else holder
        except ValueError:
            return holder

    def mode_of(self, holder: str, kind: Kind, limit: int) -> LockMode:
        if kind is Kind.SEMAPHORE:
            return LockMode(kind, permits=int(holder.partition(":")[2] or 1), limit=limit)
        return LockMode(kind, exclusive=kind is Kind.MUTEX or holder.endswith(WRITE))


def bytes_of(ticket: str) -> bytes:
    """Return the 16 bytes of a ticket's id."""
    return a2b_base64(ticket.replace("-", "+").replace("_", "/") + "==")


def braced(lock: bytes) -> bytes:
    """Return a lock's name as Redisson writes it in the names of its other keys and channels."""
    return lock if b"{" in lock else b"{" + lock + b"}"


def layout() -> Layout:
    """Return the layout."""
    of = "Redisson's locks, read-write locks and permits"
    return Redisson("redisson", of, CAPABILITIES, Scripts.of("redisson"), kinds=tuple(PARTS), topics=True)

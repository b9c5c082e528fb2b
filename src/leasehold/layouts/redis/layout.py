"""What a layout is to the store: the other library's keys, and the scripts that read and write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from leasehold._model import Capabilities, Kind, LockMode, Ticket
from leasehold.errors import Unsupported
from leasehold.layouts.redis.scripts import Scripts
from leasehold.stores._common.names import before

SIDE = "leasehold:layout:"
"""The prefix of our own keys for a lock; the lock's key follows in braces, encoded, then the role."""

ROLES = (b"}:side", b"}:queue", b"}:waiters")

_SAFE = "!#$&'()+,-./:;<=>@_|~"


@dataclass(frozen=True)
class Layout:
    """The format of one library.

    Attributes:
        name: as in the URL.
        of: the libraries, for messages.
        capabilities: what its locks promise.
        scripts: of each step.
        prefix: precedes each name in the lock's key.
        poll: seconds between two looks of the first waiter; 0 if the other library notifies.
        kinds: of lock that it has.
        topics: whether the other library notifies by channels.
        quorum: whether it also has a lock on several servers, of which a majority decides.
        option: of the URL, which changes all keys; empty if there is none.
        clustered: whether the locks are on a cluster, so that all keys of one are in one slot.
    """

    name: str
    of: str
    capabilities: Capabilities
    scripts: Scripts
    prefix: str = ""
    poll: float = 0.0
    kinds: Sequence[Kind] = (Kind.MUTEX,)
    topics: bool = False
    quorum: bool = False
    option: str = ""
    clustered: bool = False

    def on_cluster(self) -> Layout:
        """Return the layout on a cluster.

        Raises:
            Unsupported: the other library's locks are not on clusters, or ours cannot share them there.
        """
        raise Unsupported(
            f"layout={self.name} works on one Redis server and on the primary under Sentinel, not on a cluster; "
            "write redis://, rediss://, unix:// or redis+sentinel://"
        )

    def lock_key(self, namespace: str, name: str) -> bytes:
        """Return the key of a lock, as the other library has it."""
        return (self._before(namespace) + name).encode()

    def scripts_of(self, kind: Kind) -> Scripts:
        """Return the scripts for a kind of lock."""
        return self.scripts

    def keys(self, namespace: str, name: str, kind: Kind = Kind.MUTEX) -> Sequence[bytes]:
        """Return all keys of a lock, in the order in which the scripts take them."""
        lock = self.lock_key(namespace, name)
        return (lock, *(self._stem(lock) + role for role in ROLES), *self.more_keys(lock, kind))

    def _stem(self, lock: bytes) -> bytes:
        """Return the prefix of our keys for a lock, up to the role."""
        begin, encoded = f"{SIDE}{self.name}:{{".encode(), quote(lock, safe=_SAFE).encode()
        if not self.clustered:
            return begin + encoded
        tag = slot_tag(lock)
        if b"}" in tag or b"{" in tag:
            raise Unsupported(f"the key {lock.decode()!r} cannot be a lock on a cluster: its braces are not in pairs")
        return begin + tag if tag == encoded else begin + tag + b"}:{" + encoded

    def keys_of(self, namespace: str, name: str, ticket: Ticket, *, renews: bool = False) -> Sequence[bytes]:
        """Return the keys of a ticket's script, in the order in which it takes them.

        A node refuses a script if a slot migrates and a key of it does not exist. So on a cluster a script that renews
        has those alone that exist while the ticket holds. Where one is left out, the second is in its place.
        """
        all_keys = self.keys(namespace, name, ticket.terms.mode.kind)
        return all_keys[:2] if renews and self.clustered else all_keys

    def more_keys(self, lock: bytes, kind: Kind) -> Sequence[bytes]:
        """Return the layout's further keys of a lock."""
        return ()

    def keys_inside(self, lock: bytes, kind: Kind) -> Sequence[bytes]:
        """Return a key like each kind of key that the scripts name themselves."""
        return ()

    def rule_of(self, namespace: str, name: str, key: bytes) -> str:
        """Return the access rule that grants a key of a lock, and the same of all locks of the namespace."""
        lock = self.lock_key(namespace, name)
        stem, found, _ = key.partition(lock)
        if key.startswith(SIDE.encode()):
            return f"~{SIDE}*"
        if not found:
            return f"~{key.decode()}"
        begins = self._before(namespace)
        return f"~{stem.decode()}{begins}*" if begins or stem.strip(b"{") else f"~{key.decode()}"

    def topic(self, lock: bytes, ticket: Ticket) -> bytes:
        """Return the channel on which the other library notifies a waiter of a release."""
        return b""

    def wakes_all(self, topic: bytes) -> bool:
        """Return whether each waiter that follows a channel claims again at its messages, or one of them."""
        return False

    def pattern(self, namespace: str, prefix: str, role: bytes = ROLES[0]) -> bytes:
        """Return the glob pattern of our keys for the locks whose names begin with ``prefix``."""
        if self.clustered:  # a key may begin with a part of the name
            return f"{SIDE}{self.name}:{{*".encode() + role
        begins = quote((self._before(namespace) + prefix).encode(), safe=_SAFE)
        return f"{SIDE}{self.name}:{{{begins}*".encode() + role

    def name_of(self, namespace: str, key: bytes) -> str | None:
        """Return the name to which a key of ours belongs; None if it is of another namespace."""
        inside = unquote(key.decode().partition("{")[2].rpartition("}")[0].rpartition("}:{")[2])
        before = self._before(namespace)
        return inside.removeprefix(before) if inside.startswith(before) else None

    def id_in(self, ticket: Ticket) -> str:
        """Return the holder's id in the lock's key for a ticket."""
        return self.id_of(ticket.id)

    def id_of(self, ticket: str) -> str:
        """Return the same of a ticket's id, where the lock's mode does not matter."""
        return ticket

    def mode_of(self, holder: str, kind: Kind, limit: int) -> LockMode:
        """Return the mode of a holder's id."""
        return LockMode()

    def claimed_with(self, ticket: Ticket) -> bytes:
        """Return what a claim tells the layout's part of its script."""
        return b""

    def ticket_of(self, holder: str) -> str:
        """Return the ticket of a holder's id, or the id itself if it is not one of ours."""
        return holder

    def _before(self, namespace: str) -> str:
        """Return what precedes the name: the prefix and the namespace."""
        return self.prefix + before(namespace)


def slot_tag(key: bytes) -> bytes:
    """Return the part of a key that decides its slot in a cluster: what is in its first braces, else all of it."""
    inside, end, _ = key.partition(b"{")[2].partition(b"}")
    return inside if end and inside else key

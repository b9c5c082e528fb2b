"""What a layout is to the store: the other library's keys, and the scripts that read and write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from leasehold._model import Capabilities, Kind, LockMode, Ticket
from leasehold.layouts.redis.scripts import Scripts
from leasehold.stores._common.names import before

SIDE = "leasehold:layout:"
"""What our own keys beside a lock begin with; the lock's key follows in braces, encoded, then the role."""

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

    def lock_key(self, namespace: str, name: str) -> bytes:
        """Return the key of a lock, as the other library has it."""
        return (self._before(namespace) + name).encode()

    def scripts_of(self, kind: Kind) -> Scripts:
        """Return the scripts for a kind of lock."""
        return self.scripts

    def keys(self, namespace: str, name: str, kind: Kind = Kind.MUTEX) -> Sequence[bytes]:
        """Return all keys of a lock, in the order in which the scripts take them."""
        lock = self.lock_key(namespace, name)
        stem = f"{SIDE}{self.name}:{{{quote(lock, safe=_SAFE)}".encode()
        return (lock, *(stem + role for role in ROLES), *self.more_keys(lock, kind))

    def more_keys(self, lock: bytes, kind: Kind) -> Sequence[bytes]:
        """Return the layout's further keys of a lock."""
        return ()

    def topic(self, lock: bytes, ticket: Ticket) -> bytes:
        """Return the channel on which the other library notifies a waiter of a release."""
        return b""

    def wakes_all(self, topic: bytes) -> bool:
        """Return whether each waiter that follows a channel claims again at its messages, or one of them."""
        return False

    def pattern(self, namespace: str, prefix: str, role: bytes = ROLES[0]) -> bytes:
        """Return the glob pattern of our keys beside the locks whose names begin with ``prefix``."""
        begins = quote((self._before(namespace) + prefix).encode(), safe=_SAFE)
        return f"{SIDE}{self.name}:{{{begins}*".encode() + role

    def name_of(self, namespace: str, key: bytes) -> str | None:
        """Return the name to which a key of ours belongs; None if it is of another namespace."""
        inside = unquote(key.decode().partition("{")[2].rpartition("}")[0])
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

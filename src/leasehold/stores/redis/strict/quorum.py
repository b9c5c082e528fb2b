"""The options of strict mode, and the command with which a connection waits until replicas have its writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError, bulk, pack

LONGEST = 60.0
"""Seconds: the default bound of a lease."""

LONGEST_BOUND = 86_400.0
"""Seconds: the largest bound. After each failover locks are unavailable for as long as the bound."""

MOST_REPLICAS = 1000

ACKNOWLEDGED_WITHIN = 1.0
"""Seconds in which replicas must acknowledge a grant; at most half of the caller's time."""

SYNCED_WITHIN = 3.0
"""Seconds in which it must be on disk.

With ``appendfsync everysec`` a server syncs once a second, and a replica reports that once a second.
"""

WAITS = (bulk(b"WAIT"), bulk(b"WAITAOF"))


@dataclass(frozen=True, slots=True)
class Strict:
    """The options of strict mode (docs/strict.md).

    Attributes:
        longest: seconds; the longest lease with its lock delay. After a failover nothing is granted for so long.
            It must be the same for all clients.
        replicas: how many must acknowledge a grant; None for a majority of the primary and its current replicas.
        fsync: the primary and these replicas must have the grant on disk (``WAITAOF``, Redis 7.2 or later).
    """

    longest: float = LONGEST
    replicas: int | None = None
    fsync: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.longest <= LONGEST_BOUND:
            raise ValueError(f"longest_lease is above 0 and at most {LONGEST_BOUND:.0f} s, not {self.longest}")
        if self.replicas is not None and not 0 <= self.replicas <= MOST_REPLICAS:
            raise ValueError(f"replicas is from 0 to {MOST_REPLICAS}, not {self.replicas}")

    def needed(self, connected: int) -> int:
        """Return how many of the connected replicas must acknowledge."""
        return (connected + 1) // 2 if self.replicas is None else self.replicas

    @property
    def longest_wait(self) -> float:
        """Seconds that replicas, and with ``fsync`` disks, get at most."""
        return SYNCED_WITHIN if self.fsync else ACKNOWLEDGED_WITHIN

    def wait(self, replicas: int, within: float) -> bytes:
        """Return the command that waits until so many replicas have the writes of this connection."""
        ms = b"%d" % max(1, round(min(self.longest_wait, within / 2) * 1000))
        if self.fsync:
            return pack(b"WAITAOF", b"1", b"%d" % replicas, ms)
        return pack(b"WAIT", b"%d" % replicas, ms)

    def acknowledged(self, reply: Any, replicas: int) -> bool:
        """Return whether the reply to `wait` means that so many replicas have the writes."""
        if isinstance(reply, ReplyError):
            return False
        if self.fsync:
            return bool(reply[0] >= 1 and reply[1] >= replicas)
        return bool(reply >= replicas)


def waits(command: bytes) -> bool:
    """Return whether a packed command is one of `Strict.wait`: the server reads nothing more until it has replied."""
    return any(word in command[:20] for word in WAITS)

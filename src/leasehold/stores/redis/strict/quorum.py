"""Strict mode on a connection: its options, and how a connection waits until replicas have its writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError, bulk, pack

LONGEST = 60.0
"""Seconds of the longest lease, unless another bound is chosen."""

LONGEST_BOUND = 86_400.0
"""Seconds: a bound above it would make locks unavailable for longer than a day after each failover."""

MOST_REPLICAS = 1000

ACKNOWLEDGED_WITHIN = 1.0
"""Seconds that replicas get to acknowledge a grant, and at most half of the caller's time."""

SYNCED_WITHIN = 3.0
"""Likewise, where it must be on disk: by ``appendfsync everysec`` a server syncs once a second, and a replica says so
unasked once a second."""

WAITS = (bulk(b"WAIT"), bulk(b"WAITAOF"))


@dataclass(frozen=True, slots=True)
class Strict:
    """The options of strict mode (docs/strict.md).

    Attributes:
        longest: seconds; no lease with its delay may be longer, and after a failover nothing is granted for so long.
            It must be the same for all clients.
        replicas: how many must acknowledge a grant; None for as many as make most of the primary and those it has now.
        fsync: the primary and these replicas must have it on disk (``WAITAOF``, from Redis 7.2 on).

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
        """Return how many replicas must acknowledge, of so many that are connected."""
        return (connected + 1) // 2 if self.replicas is None else self.replicas

    def wait(self, replicas: int, within: float) -> bytes:
        """Return the command that waits until so many have what this connection wrote; it answers `acknowledged`."""
        most = SYNCED_WITHIN if self.fsync else ACKNOWLEDGED_WITHIN
        ms = b"%d" % max(1, round(min(most, within / 2) * 1000))
        if self.fsync:
            return pack(b"WAITAOF", b"1", b"%d" % replicas, ms)
        return pack(b"WAIT", b"%d" % replicas, ms)

    def acknowledged(self, reply: Any, replicas: int) -> bool:
        """Say whether the reply to `wait` means that so many have it."""
        if isinstance(reply, ReplyError):
            return False
        if self.fsync:
            return bool(reply[0] >= 1 and reply[1] >= replicas)
        return bool(reply >= replicas)


def waits(command: bytes) -> bool:
    """Say whether a packed command is one of `Strict.wait`: it keeps its connection busy while it waits."""
    return any(word in command[:20] for word in WAITS)

"""What the fault proxy can do to the bytes that it carries."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable


class Side(enum.Enum):
    """A direction."""

    REQUESTS = "requests"  # from the client to the server
    REPLIES = "replies"  # from the server to the client


class Deed(enum.Enum):
    """What a fault does to the bytes that it meets."""

    DELAY = "delay"
    HOLD = "hold"
    DROP = "drop"
    DROP_REPLY = "drop reply"
    CUT = "cut"
    BLACKHOLE = "blackhole"


class Fault:
    """One fault that was set. `remove` ends it.

    Attributes:
        hits: how often it acted so far.

    """

    def __init__(
        self,
        deed: Deed,
        side: Side | None,
        where: bytes,
        nth: int,
        seconds: float,
        remove: Callable[[Fault], None],
    ) -> None:
        self.deed = deed
        self.seconds = seconds
        self.hits = 0
        self._remove = remove
        self._side = side
        self._where = where
        self._nth = nth
        self._seen = 0
        self._hit = threading.Event()
        self.over = asyncio.Event()

    def wait(self, timeout: float) -> bool:
        """Wait until it acted for the first time; return whether it did."""
        return self._hit.wait(timeout)

    def remove(self) -> None:
        """End it; what it held goes on its way."""
        self._remove(self)

    def meets(self, side: Side, data: bytes) -> bool:
        """Say whether it acts on this chunk, and count."""
        if (self._side is not None and side is not self._side) or self._where not in data:
            return False
        before, self._seen = self._seen, self._seen + (data.count(self._where) if self._where else 1)
        if self._nth and not before < self._nth <= self._seen:
            return False
        self.hits += 1
        self._hit.set()
        return True

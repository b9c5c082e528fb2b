"""The faults that the proxy can inject into the bytes that it relays."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable


class Side(enum.Enum):
    """A direction."""

    REQUESTS = "requests"  # from the client to the server
    REPLIES = "replies"  # from the server to the client


class Effect(enum.Enum):
    """The effect of a fault on the bytes that it matches."""

    DELAY = "delay"
    HOLD = "hold"
    DROP = "drop"
    DROP_REPLY = "drop reply"
    CUT = "cut"
    BLACKHOLE = "blackhole"


class Fault:
    """One active fault. `remove` ends it.

    Attributes:
        hits: how often it has taken effect.

    """

    def __init__(
        self,
        effect: Effect,
        side: Side | None,
        where: bytes,
        nth: int,
        seconds: float,
        remove: Callable[[Fault], None],
    ) -> None:
        self.effect = effect
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
        """Wait until it takes effect for the first time; return whether it did."""
        return self._hit.wait(timeout)

    def remove(self) -> None:
        """End it; the bytes that it held are relayed."""
        self._remove(self)

    def meets(self, side: Side, data: bytes) -> bool:
        """Return whether it affects this chunk, and count."""
        if (self._side is not None and side is not self._side) or self._where not in data:
            return False
        before, self._seen = self._seen, self._seen + (data.count(self._where) if self._where else 1)
        if self._nth and not before < self._nth <= self._seen:
            return False
        self.hits += 1
        self._hit.set()
        return True

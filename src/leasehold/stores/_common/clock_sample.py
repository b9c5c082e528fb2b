"""The start of a lease that was granted by a message.

A lease that an acquire request grants counts from before the request was sent. A grant by message was made by the
release of another client, and the message may have been delayed. But every reply contains the server's time. If a
request sent at ``sent`` (our clock) was carried out at ``server`` (the server's clock), then the server's clock showed
``server`` not before our ``sent``. So a grant at the server's time G was made not before

    sent + (G - server) * (1 - DRIFT)      for G after the sample, and
    sent - (server - G) / (1 - DRIFT)      for G before it.

If the server's clock stepped forward between sample and grant, the first formula gives a time that is too late. So a
grant that would be later than the arrival of its message is discarded: the client sends its acquire request again, and
finds the grant. A smaller step is not noticed. Then the holder counts the lease from a moment that is too late by the
step, but never after the arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._model import DRIFT

OLDEST = 1 / 3
"""A grant that may be older than this part of its lease is requested again instead."""


@dataclass(slots=True)  # not frozen: that costs a call for each field
class ClockSample:
    """A request sent at ``sent`` (boot-time seconds) was carried out at the server's time ``server`` (microseconds)."""

    sent: float
    server: int


@dataclass(slots=True)
class GrantMessage:
    """The content of a message: the ticket holds with ``token`` since the server's time ``at`` (microseconds)."""

    ticket: str
    token: int
    at: int

    @classmethod
    def parse(cls, message: bytes) -> GrantMessage | None:
        """Read a message; None if it is not one of ours."""
        words = message.split(b" ")
        if len(words) != 3 or not words[1].isdigit() or not words[2].isdigit():
            return None
        return cls(words[0].decode("ascii", "replace"), int(words[1]), int(words[2]))

    def since(self, clock_sample: ClockSample | None, now: float, lease: float) -> float | None:
        """Return the boot-time clock from which the lease counts; None if the request must be sent again.

        That is so if the grant is too old, or if it seems to come from the future.
        """
        if clock_sample is None:
            return None
        after = (self.at - clock_sample.server) / 1e6
        since = clock_sample.sent + (after * (1 - DRIFT) if after >= 0 else after / (1 - DRIFT))
        return since if 0 <= now - since <= lease * OLDEST else None  # later than now: the server's clock has stepped

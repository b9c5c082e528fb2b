"""From which moment a grant that came by message may be counted.

A claim's grant is counted from before the claim was sent. A grant by message was made by somebody else's release, and
the message may have been long on its way. But every reply brings the server's time: if a request sent at ``sent``
(our clock) was carried out at ``server`` (the server's clock), then the server's clock showed ``server`` not before
our ``sent``. So a grant at the server's time G was made not before

    sent + (G - server) * (1 - DRIFT)      for G after the anchor, and
    sent - (server - G) / (1 - DRIFT)      for G before it.

If the server's clock stepped forward between the two, the first is too late. So a grant that would be later than the
arrival of its message is not believed: it is asked for again, and the claim finds it. A smaller step is not noticed. It
makes the holder count the lease from too late a moment, by as much as the step, and never from after the arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._model import DRIFT

OLDEST = 1 / 3
"""A grant that may be older than this part of its lease is asked for again instead: the claim finds it."""


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A request sent at ``sent`` (boot-time seconds) was carried out at the server's time ``server`` (microseconds)."""

    sent: float
    server: int


@dataclass(frozen=True, slots=True)
class GrantMessage:
    """What the message says: the ticket holds with ``token`` since the server's time ``at`` (microseconds)."""

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
        """Return the boot-time clock from which the lease counts; None if the claim is to be sent again instead.

        That is so if the grant is too old to be of use, or if it seems to come from the future.
        """
        if clock_sample is None:
            return None
        after = (self.at - clock_sample.server) / 1e6
        since = clock_sample.sent + (after * (1 - DRIFT) if after >= 0 else after / (1 - DRIFT))
        return since if 0 <= now - since <= lease * OLDEST else None  # later than now: the server's clock has stepped

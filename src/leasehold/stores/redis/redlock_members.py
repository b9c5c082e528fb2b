"""What the nodes of a Redlock are reached by: a single server each, or what sentinels call the primary."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leasehold.runtimes.base import Runtime
from leasehold.stores.redis.store import single_wire
from leasehold.wires.redis.base import OnMessage, OnSilence, Wire
from leasehold.wires.redis.following import FollowingWire
from leasehold.wires.redis.sentinel import Sentinels, Watched
from leasehold.wires.redis.settings import Settings


@dataclass(frozen=True)
class Single:
    """One server."""

    settings: Settings

    def wire(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Wire:
        """Make the wire; it connects at the first call."""
        return single_wire(runtime)(runtime, self.settings, channel, on_message, on_silence)


@dataclass(frozen=True)
class Followed:
    """The primary that sentinels name."""

    watched: Watched

    @property
    def settings(self) -> Settings:
        """How to speak to it, under the name of the sentinels."""
        return replace(self.watched.server, where=self.watched.where)

    def wire(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Wire:
        """Make the wire; it looks for the primary at the first call."""
        make = single_wire(runtime)
        sentinels = Sentinels(runtime, self.watched, make, on_silence)
        return FollowingWire(runtime, sentinels, make, channel, on_message, on_silence)

"""What a node of a Redlock is reached by: a single server, or the primary that sentinels name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from leasehold._model import Finding
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import OnMessage, OnSilence, Transport
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.doctor import doctor
from leasehold.stores.redis.sentinel.primary_tracking import PrimaryTransport
from leasehold.stores.redis.sentinel.sentinel import Sentinels, Watched
from leasehold.stores.redis.sentinel.store import SentinelStore
from leasehold.stores.redis.store import single_transport


class Member(Protocol):
    """What a node is reached by.

    Attributes:
        settings: how to connect to it, and its name in messages to people.
        fails_over: another server may take its place, without the last votes.

    """

    @property
    def settings(self) -> Settings: ...
    @property
    def fails_over(self) -> bool: ...

    def transport(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Transport:
        """Make the transport; it connects at the first call."""
        ...

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        """Check the settings of its servers."""
        ...


@dataclass(frozen=True)
class Single:
    """One server."""

    settings: Settings
    fails_over: bool = False

    def transport(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Transport:
        return single_transport(runtime)(runtime, self.settings, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        return await doctor.diagnose(runtime, transport, self.settings, namespace, channel)


@dataclass(frozen=True)
class TrackedPrimary:
    """The primary that sentinels name."""

    watched: Watched
    fails_over: bool = True

    @property
    def settings(self) -> Settings:
        """How to connect to it, under the name of the sentinels."""
        return replace(self.watched.server, where=self.watched.where)

    def transport(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Transport:
        make = single_transport(runtime)
        sentinels = Sentinels(runtime, self.watched, make, on_silence)
        return PrimaryTransport(runtime, sentinels, make, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        store = SentinelStore(runtime, self.watched, namespace)
        try:
            return await store.diagnose()
        finally:
            await store.close()

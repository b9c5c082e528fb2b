"""What the nodes of a Redlock are reached by: a single server each, what sentinels call the primary, or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from leasehold._model import Finding
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold.stores.redis.connection.base import OnMessage, OnSilence, ReplyError, Transport, pack
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.doctor import doctor
from leasehold.stores.redis.redlock.sharded import ShardedTransport
from leasehold.stores.redis.sentinel.primary_tracking import PrimaryTransport
from leasehold.stores.redis.sentinel.sentinel import Sentinels, SentinelSettings
from leasehold.stores.redis.sentinel.store import SentinelStore
from leasehold.stores.redis.store import RedisStore


class Member(Protocol):
    """What a node is reached by.

    Attributes:
        settings: how to speak to it, and what to call it in messages to people.
        apart: names live apart there: no script can have keys of two.
        fails_over: another server may take its place, without the last votes.

    """

    @property
    def settings(self) -> Settings: ...
    @property
    def apart(self) -> bool: ...
    @property
    def fails_over(self) -> bool: ...

    def transport(
        self, runtime: Runtime, namespace: str, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport:
        """Make the transport; it connects at the first call."""
        ...

    def channel(self, channel: bytes) -> bytes:
        """Return the channel on which a client is told by this node, of the name that it has at others."""
        ...

    def memory(self, transport: Transport, namespace: str, name: str) -> bytes:
        """Return the key in which the server that has ``name`` keeps what it remembers of its own votes."""
        ...

    async def identity(self, transport: Transport, within: float) -> str:
        """Return what no other node has; empty if it may not be asked."""
        ...

    async def parts(self, transport: Transport, within: float) -> Sequence[Transport]:
        """Return the wires of all servers among which the names are shared."""
        ...

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        """Look at its servers' settings."""
        ...


class Whole:
    """What all kinds have in common of which one server at a time has all names."""

    apart = False

    def channel(self, channel: bytes) -> bytes:
        return channel

    def memory(self, transport: Transport, namespace: str, name: str) -> bytes:
        return keys.memory_key(namespace, "")

    async def identity(self, transport: Transport, within: float) -> str:
        reply = await transport.call(pack(b"INFO", b"server"), within=within)
        return "" if isinstance(reply, ReplyError) else _run_id(reply.decode("utf-8", "replace"))

    async def parts(self, transport: Transport, within: float) -> Sequence[Transport]:
        return [transport]


@dataclass(frozen=True)
class Single(Whole):
    """One server."""

    settings: Settings
    fails_over: bool = False

    def transport(
        self, runtime: Runtime, namespace: str, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport:
        return single_transport(runtime)(runtime, self.settings, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        return await doctor.diagnose(runtime, transport, self.settings, namespace, channel)


@dataclass(frozen=True)
class Followed(Whole):
    """The primary that sentinels name."""

    watched: SentinelSettings
    fails_over: bool = True

    @property
    def settings(self) -> Settings:
        """How to speak to it, under the name of the sentinels."""
        return replace(self.watched.server, where=self.watched.where)

    def transport(
        self, runtime: Runtime, namespace: str, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport:
        make = single_transport(runtime)
        sentinels = Sentinels(runtime, self.watched, make, on_silence)
        return PrimaryTransport(runtime, sentinels, make, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        return await _said(SentinelStore(runtime, self.watched, namespace))


@dataclass(frozen=True)
class Sharded:
    """A cluster: for each name, the shard that has it."""

    seeds: Sequence[Settings]
    apart: bool = True
    fails_over: bool = True

    @property
    def settings(self) -> Settings:
        """How to speak to its nodes, under the name of the cluster."""
        return replace(self.seeds[0], where=f"the cluster at {', '.join(seed.where for seed in self.seeds)}")

    def transport(
        self, runtime: Runtime, namespace: str, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport:
        return ShardedTransport(runtime, self.seeds, namespace, channel, on_message, on_silence)

    def channel(self, channel: bytes) -> bytes:
        return keys.bus_channel(channel)

    def memory(self, transport: Transport, namespace: str, name: str) -> bytes:
        return cast("ShardedTransport", transport).memory(name)

    async def identity(self, transport: Transport, within: float) -> str:
        return await cast("ShardedTransport", transport).identity(within)

    async def parts(self, transport: Transport, within: float) -> Sequence[Transport]:
        return await cast("ShardedTransport", transport).shards(within)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        return await _said(ClusterStore(runtime, self.seeds, namespace))


async def _said(store: RedisStore | ClusterStore) -> list[Finding]:
    """Let what locks on such servers look at them."""
    try:
        return await store.diagnose()
    finally:
        await store.close()


def _run_id(info: str) -> str:
    lines = (line.partition(":") for line in info.splitlines())
    return next((value for key, _, value in lines if key == "run_id"), "")

"""A model of Redlock: five independent Redis servers, of which a majority must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold._model import Finding
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import OnMessage, OnSilence, Transport
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.redlock.store import RedlockStore
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from leasehold_lab.runtimes.network import InVirtualTime
from models.redis.server import RedisServerModel
from models.redis.transport import transports
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.system import Spoilt, System
from models.systems.redis import AWAY

NODES = 5


@dataclass(frozen=True)
class ModelMember:
    """A model of a node of Redlock."""

    server: RedisServerModel
    fails_over: bool = False

    @property
    def settings(self) -> Settings:
        """Its name in messages."""
        return Settings(where=f"the model {self.server.machine.name}")

    def transport(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Transport:
        """Make the transport."""
        return transports([self.server])(runtime, self.settings, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        """Return no findings: a model is configured well."""
        return []


@dataclass(frozen=True)
class SimulatedRedlock(InVirtualTime):
    """Opens Redlock on models of its nodes."""

    servers: Sequence[RedisServerModel]

    def open(self, runtime: Runtime, namespace: str) -> RedlockStore:
        """Open the store for one client."""
        return RedlockStore(runtime, [ModelMember(server) for server in self.servers], namespace)


class RedlockSystem(System):
    """Keeps its promises while each node keeps its data and its clock; any node may restart, or be cut off."""

    name = "redlock"
    menu = Menu(
        ("lock", "fixed"),
        (*OF_CLIENTS, Kind.REPEAT, Kind.DEAF, Kind.RESTART, Kind.RESTART, Kind.SCRIPTS),
        (Kind.FORGET, Kind.FLUSH, Kind.FORWARD),
    )
    linearizable = False
    tries = False
    late = 2.5
    """Seconds: a node that did not answer is skipped for up to two, and split votes are retried after a pause."""
    reconnects = 2.5

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        rates = [rate if number == 0 else 2.0 - rate if number == 1 else 1.0 for number in range(NODES)]
        self.servers = [
            RedisServerModel(harness.scheduler, rate=each, name=f"n{number}", rewrite=spoilt.rewrite)
            for number, each in enumerate(rates)
        ]
        self.hosts = self.servers
        self.opener = SimulatedRedlock(self.servers)

    def _node(self, one: Strike) -> RedisServerModel:
        return self.servers[one.victim % NODES]

    def restart(self, one: Strike) -> float:
        """Restart a node with what it had."""
        seconds = 0.05 + one.luck * AWAY
        self._node(one).restart(seconds)
        return seconds

    def scripts(self, one: Strike) -> float:
        """Let a node forget its scripts."""
        self._node(one).forget_scripts()
        return 0.0

    def flush(self, one: Strike) -> float:
        """Take a node's keys."""
        self._node(one).flush()
        return 0.0

    def forget(self, one: Strike) -> float:
        """Restart a node without its keys."""
        seconds = 0.05 + one.luck * AWAY
        self._node(one).restart(seconds, lose=True)
        return seconds

"""A Redis Cluster of three primaries, each with a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold.stores.redis.connection.settings import Settings
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from leasehold_lab.runtimes.network import InVirtualTime
from models.redis.cluster import RedisClusterModel
from models.redis.cluster_node import PORT, REJOINS, ClusterNodeModel
from models.redis.lua import Keys
from models.redis.transport import transports
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.system import Spoilt, System
from models.systems.redis import AWAY, LOCKS

LAG = 1.0
"""Seconds of writes that a failover may lose."""

SEEDS = 2
"""Nodes that the URL names."""


@dataclass(frozen=True)
class SimulatedCluster(InVirtualTime):
    """Opens the store on a model of a cluster."""

    nodes: Sequence[ClusterNodeModel]

    def open(self, runtime: Runtime, namespace: str) -> ClusterStore:
        """Open the store for one client."""
        plain = Settings(where="a node of the model", mode="cluster")
        seeds = [plain.at(node.machine.name, PORT) for node in self.nodes[:SEEDS]]
        return ClusterStore(runtime, seeds, namespace, make=transports(self.nodes))


class ClusterSystem(System):
    """The word is kept if a new primary has all that the old one answered, wherever slots go."""

    name = "cluster"
    menu = Menu(
        LOCKS,
        (*OF_CLIENTS, Kind.REPEAT, Kind.DEAF, Kind.MOVE, Kind.SLOT, Kind.SLOT, Kind.RESTART, Kind.SCRIPTS),
        (Kind.FAILOVER, Kind.FORGET, Kind.FORWARD),
    )
    passes_over = True
    reconnects = 1.7
    """The nodes are asked for up to a second who has the slot, and once more after pauses of up to half a second."""

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.cluster = RedisClusterModel(harness.scheduler, rate=rate, rewrite=spoilt.rewrite)
        self.hosts = self.nodes = self.cluster.nodes
        self.opener = SimulatedCluster(self.nodes)
        self._shards = len(self.cluster.view.nodes)
        self._busy_until = 0.0
        self._behind: dict[float, list[Keys]] = {}

    def foresee(self, one: Strike) -> None:
        """Keep, before a failover, what the replicas will have."""
        if one.kind is Kind.FAILOVER:
            when = max(0.0, one.at - one.luck * LAG)
            self.harness.scheduler.at(when, self.harness.fate, lambda: self._keep(one.at))

    def _keep(self, at: float) -> None:
        self._behind[at] = [self.cluster.primary(shard).model.keys() for shard in range(self._shards)]

    def _shard(self, one: Strike) -> int:
        """Return the shard that is hit: one that has names, if any has."""
        used = sorted({self.cluster.view.shard(slot) for slot in self.cluster.slots_in_use()})
        return used[one.victim % len(used)] if used else one.victim % self._shards

    def _begin(self, seconds: float) -> float | None:
        """Begin what nothing else may come in between; return how long it lasts, None if something is under way."""
        now = self.harness.scheduler.time
        if now < self._busy_until:
            return None
        self._busy_until = now + seconds
        return seconds

    def restart(self, one: Strike) -> float | None:
        """Restart a primary with what it had, before another node noticed."""
        return self._restart(one, lose=False)

    def forget(self, one: Strike) -> float | None:
        """Restart a primary without its keys, before another node noticed."""
        return self._restart(one, lose=True)

    def _restart(self, one: Strike, *, lose: bool) -> float | None:
        away = 0.05 + one.luck * AWAY
        if (seconds := self._begin(away + REJOINS)) is not None:
            self.cluster.primary(self._shard(one)).restart(away, lose=lose)
        return seconds

    def scripts(self, one: Strike) -> float:
        """Let a primary forget its scripts."""
        self.cluster.primary(self._shard(one)).forget_scripts()
        return 0.0

    def forward(self, one: Strike) -> float:
        """Set a primary's clock forward."""
        self.cluster.primary(self._shard(one)).step(one.luck * 5.0)
        return 0.0

    def move(self, one: Strike) -> float | None:
        """Hand over to a replica that has all, by order or since the primary is dead."""
        shard = self._shard(one)
        if one.luck * 10 % 1 < 0.5:
            if (seconds := self._begin(0.0)) is not None:
                self.cluster.hand_over(shard)
        elif (seconds := self._begin(0.05 + one.luck * AWAY)) is not None:
            self.cluster.fail_over(shard, self.cluster.primary(shard).model.keys(), seconds, 0.0)
        return seconds

    def failover(self, one: Strike) -> float | None:
        """Let a replica take over that lacks the last writes; the old primary may go on for a while."""
        alongside = one.seconds if one.luck * 10 % 1 < 0.5 else 0.0
        away = 0.05 + one.luck * AWAY
        if (seconds := self._begin(max(away, alongside))) is not None:
            shard = self._shard(one)
            self.cluster.fail_over(shard, self._behind[one.at][shard], away, alongside)
        return seconds

    def slot(self, one: Strike) -> float | None:
        """Move a slot to another node, its keys one by one or together."""
        slots = self.cluster.slots_in_use()
        if not slots or (seconds := self._begin(one.seconds)) is None:
            return None
        slot = slots[one.victim % len(slots)]
        to = (self.cluster.view.shard(slot) + 1 + one.victim % (self._shards - 1)) % self._shards
        now, at = self.harness.scheduler.time, self.harness.scheduler.at
        self.cluster.begin_move(slot, to)
        if one.luck < 0.7:
            for _ in self.cluster.keys_in(slot):
                when = now + seconds * self.harness.scheduler.random.random()
                at(when, self.harness.fate, lambda: self._move_one(slot, to))
        at(now + seconds, self.harness.fate, lambda: self.cluster.finish_move(slot, to))
        return seconds

    def _move_one(self, slot: int, to: int) -> None:
        left = self.cluster.keys_in(slot)
        if left:
            self.cluster.move(slot, to, [self.harness.scheduler.random.choice(left)])

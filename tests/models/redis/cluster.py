"""A Redis Cluster in simulated time: events among its nodes. One node is in ``cluster_node.py``.

Theory of operation
-------------------
A change begins at one node and reaches the others a moment later, over their bus; until then they reply by their old
view. While a primary is dead and has no successor, the nodes that have noticed refuse all keys (CLUSTERDOWN), as is
usual.

A slot migrates as by ``redis-cli``: both nodes are notified, its keys move one by one or together, and both learn the
new owner. At a failover the replica has what it has received by then. The caller decides which changes happen at the
same time; see `systems.cluster`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from leasehold_lab.runtimes.virtual import Scheduler
from models.redis.cluster_node import ClusterNodeModel, View, slot_of_key
from models.redis.commands import Rewrite
from models.redis.lua import Keys

GOSSIP = 0.1
"""Most seconds until all nodes know of a change."""


class RedisClusterModel:
    """All nodes, and the events among them. Each shard has a primary and a replica."""

    def __init__(
        self, scheduler: Scheduler, *, shards: int = 3, rate: float = 1.0, rewrite: Rewrite | None = None
    ) -> None:
        self.scheduler = scheduler
        names = tuple((f"n{number}", f"n{number + shards}") for number in range(shards))
        self.view = View(1, names, {})
        every = [name for role in zip(*names, strict=True) for name in role]
        self.nodes = [ClusterNodeModel(scheduler, name, self.view, rate=rate, rewrite=rewrite) for name in every]
        self._by_name = {node.machine.name: node for node in self.nodes}
        for node in self.nodes:
            node.bus = [other for other in self.nodes if other is not node]

    def primary(self, shard: int) -> ClusterNodeModel:
        """Return the primary of a shard."""
        return self._by_name[self.view.nodes[shard][0]]

    def replica(self, shard: int) -> ClusterNodeModel:
        """Return the replica of a shard."""
        return self._by_name[self.view.nodes[shard][1]]

    def slots_in_use(self) -> list[int]:
        """Return the slots with keys, or with channels that have subscribers, in order."""
        primaries = [self.primary(shard) for shard in range(len(self.view.nodes))]
        words = [word for node in primaries for word in (*node.model.all_keys(), *node.channels())]
        return sorted(set(map(slot_of_key, words)))

    # --- another primary ---------------------------------------------------------------------------------------

    def hand_over(self, shard: int) -> None:
        """Make the replica the primary, with all keys; both know at once, as by ``CLUSTER FAILOVER``."""
        old, new = self.primary(shard), self.replica(shard)
        new.model.take_keys(old.model.keys())
        view = self._swapped(shard)
        old.learn(view)
        self._spread(view, new)

    def fail_over(self, shard: int, keys: Keys, away: float, alongside: float) -> None:
        """Let the replica, which has these keys, be the primary after ``away`` seconds.

        The old one is dead for so long, or, if ``alongside``, cut off from the others only, and goes on for so long.
        """
        old, new = self.primary(shard), self.replica(shard)
        new.note(f"takes over in {away:.6f} s")
        new.model.take_keys(keys)
        now, epoch = self.scheduler.time, self.view.epoch
        if not alongside:
            old.restart(away)
        for node in self.nodes:
            if node is not old:
                when = now + away * self.scheduler.random.uniform(0.5, 1.0)
                self.scheduler.at(when, node.machine, partial(node.notice, epoch))
        self.scheduler.at(now + away, new.machine, lambda: self._take_over(shard, old, new, now + max(away, alongside)))

    def _take_over(self, shard: int, old: ClusterNodeModel, new: ClusterNodeModel, until: float) -> None:
        view = self._swapped(shard)
        self._spread(view, new, without=old)
        self.scheduler.at(until, old.machine, lambda: old.learn(view))

    def _swapped(self, shard: int) -> View:
        nodes = list(self.view.nodes)
        nodes[shard] = nodes[shard][::-1]
        self.view = replace(self.view, epoch=self.view.epoch + 1, nodes=tuple(nodes))
        return self.view

    def _spread(self, view: View, first: ClusterNodeModel, *, without: ClusterNodeModel | None = None) -> None:
        """Let one node learn a view at once, and the others a little later."""
        first.learn(view)
        for node in self.nodes:
            if node is not first and node is not without:
                when = self.scheduler.time + self.scheduler.random.uniform(0.0, GOSSIP)
                self.scheduler.at(when, node.machine, partial(node.learn, view))

    # --- slots that move ---------------------------------------------------------------------------------------

    def begin_move(self, slot: int, to: int) -> None:
        """Notify both nodes that a slot migrates; nothing has moved yet."""
        source, target = self.primary(self.view.shard(slot)), self.primary(to)
        source.note(f"lets slot {slot} go to {target.machine.name}")
        target.coming.add(slot)
        source.leaving[slot] = target.machine.name

    def keys_in(self, slot: int) -> list[bytes]:
        """Return the keys of a slot that are still where it was, in order."""
        source = self.primary(self.view.shard(slot))
        return [key for key in source.model.all_keys() if slot_of_key(key) == slot]

    def move(self, slot: int, to: int, keys: Sequence[bytes]) -> None:
        """Move keys."""
        source, target = self.primary(self.view.shard(slot)), self.primary(to)
        for key in keys:
            source.model.give(key, target.model)

    def finish_move(self, slot: int, to: int) -> None:
        """Move the remaining keys, and notify all nodes of the new owner; the old one learns it a moment later."""
        self.move(slot, to, self.keys_in(slot))
        self.view = replace(self.view, epoch=self.view.epoch + 1, moved={**self.view.moved, slot: to})
        self._spread(self.view, self.primary(to))

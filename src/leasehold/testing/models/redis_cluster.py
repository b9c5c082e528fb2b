"""A Redis Cluster in simulated time: nodes that share the slots, move them, and take over from one another.

Theory of operation
-------------------
Each node is a `RedisServerModel` that looks, before a command with keys, whether it has their slot: if not, it says who
has it as far as it knows (MOVED); if the slot is on its way, whether the keys have left (ASK) or only some of them
(TRYAGAIN). What it knows is a `View`. A change begins at one node and reaches the others a moment later, over their
bus; whoever asks a node in between hears how things were. While a primary is dead and no replica in its place, those
who have noticed refuse all keys (CLUSTERDOWN), as is usual.

A slot moves as ``redis-cli`` does it: both nodes are told, its keys go one by one or together, both are told who has it
now. A failover gives the replica what it has received by then. Which of the changes may happen beside which others is
up to the caller; see `systems.cluster`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from leasehold.runtimes.virtual import Scheduler
from leasehold.stores.redis.keys import SLOTS, slot_of
from leasehold.testing.models.lua import Keys
from leasehold.testing.models.net import Line
from leasehold.testing.models.redis import OK, Rewrite
from leasehold.testing.models.redis_server import UNSUBSCRIBED, RedisServerModel, Words
from leasehold.wires.redis.base import ReplyError

PORT = 6379

BUS = (0.0001, 0.001)
"""Seconds that a message takes from node to node."""

GOSSIP = 0.1
"""Seconds in which all nodes know of a change, at most."""

REJOINS = 2.0
"""Seconds for which a primary that was restarted refuses all keys: Redis's ``CLUSTER_WRITABLE_DELAY``."""

CROSS = ReplyError("CROSSSLOT Keys in request don't hash to the same slot")
DOWN = ReplyError("CLUSTERDOWN The cluster is down")
PARTLY = ReplyError("TRYAGAIN Multiple keys request during rehashing of slot")
NOT_LOCAL = b"ERR Script attempted to access a non local key in a cluster node"

KEYLESS = frozenset({b"CLUSTER", b"INFO", b"PING", b"ROLE", b"SCAN", b"SCRIPT", b"SUBSCRIBE", b"TIME"})
"""Commands of clients that every node carries out."""

slot_of_key = lru_cache(maxsize=4096)(slot_of)


@dataclass(frozen=True)
class View:
    """How one node sees the cluster.

    Attributes:
        epoch: goes up with each change.
        nodes: of each shard, by name, the primary first.
        moved: the shard of each slot that is not where it was at first.

    """

    epoch: int
    nodes: tuple[tuple[str, ...], ...]
    moved: Mapping[int, int]

    def shard(self, slot: int) -> int:
        """Return the shard that has a slot: at first each has an equal part."""
        found = self.moved.get(slot)
        return (slot * len(self.nodes) + len(self.nodes) - 1) // SLOTS if found is None else found

    def owner(self, slot: int) -> str:
        """Return the node that has a slot."""
        return self.nodes[self.shard(slot)][0]

    def slots(self) -> list[list[Any]]:
        """Return the reply to ``CLUSTER SLOTS``."""
        cuts = {number * SLOTS // len(self.nodes) for number in range(len(self.nodes) + 1)}
        edges = sorted(cuts.union(*({slot, slot + 1} for slot in self.moved)))
        return [
            [
                first,
                after - 1,
                *([name.encode(), PORT, b"id of " + name.encode()] for name in self.nodes[self.shard(first)]),
            ]
            for first, after in pairwise(edges)
        ]


class ClusterNodeModel(RedisServerModel):
    """A node.

    Attributes:
        view: what it knows.
        down: whether it knows of slots that nobody serves.
        leaving: the slots that go to other nodes, and which those are.
        coming: the slots that come from other nodes.

    """

    def __init__(
        self, scheduler: Scheduler, name: str, view: View, *, rate: float = 1.0, rewrite: Rewrite | None = None
    ) -> None:
        super().__init__(scheduler, rate=rate, name=name, rewrite=rewrite)
        self.view = view
        self.down = False
        self.leaving: dict[int, str] = {}
        self.coming: set[int] = set()
        self.bus: Sequence[ClusterNodeModel] = ()
        self.model.publish_in_shard = self._publish_in_shard
        self._in_shard: defaultdict[bytes, dict[int, Line]] = defaultdict(dict)
        self._asking: set[int] = set()
        self._for_the_map: set[int] = set()
        self._take_role()

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Line, request: Sequence[Words]) -> None:
        """Carry out commands that were sent in one write, each if it belongs here."""
        for words in request:
            asking = line.number in self._asking
            self._asking.discard(line.number)
            if words[0] == b"ASKING":
                self._asking.add(line.number)
                self._reply(line, OK)
            elif (refusal := self.refusal(words, asking=asking)) is not None:
                self.note(f"refuses {line.client.name} {refusal}")
                self._reply(line, refusal)
            elif words[0] == b"SSUBSCRIBE":
                if line.open:
                    self._in_shard[words[1]][line.number] = line
                self._reply(line, [b"ssubscribe", words[1], 1])
            else:
                if words[0] == b"CLUSTER":
                    self._for_the_map.add(line.number)
                super().receive(line, [words])

    def answer(self, words: Words) -> Any:
        """Carry out one command and return its reply."""
        if words[0] != b"CLUSTER":
            return super().answer(words)
        match words[1]:
            case b"SLOTS":
                return self.view.slots()
            case b"INFO":
                state = "fail" if self.down else "ok"
                return f"cluster_state:{state}\r\ncluster_current_epoch:{self.view.epoch}\r\n".encode()
            case _:
                raise NotImplementedError(f"the model of a cluster has no CLUSTER {words[1].decode()}")

    def refusal(self, words: Words, *, asking: bool) -> ReplyError | None:
        """Return why a command is not carried out here; None if it is."""
        sharded, keys = words[0] == b"SSUBSCRIBE", _keys(words)
        if not keys:
            return None
        slot = slot_of_key(keys[0])
        if any(slot_of_key(key) != slot for key in keys[1:]):
            return CROSS
        if self.down and not sharded:
            return DOWN
        owner = self.view.owner(slot)
        if not sharded and (slot in self.leaving or slot in self.coming):
            there = sum(map(self.model.has, keys))
            if slot in self.leaving and there < len(keys):
                return PARTLY if there else ReplyError(f"ASK {slot} {self.leaving[slot]}:{PORT}")
            if slot in self.coming and asking:
                return PARTLY if len(set(keys)) > 1 and there < len(keys) else None
        mine = self._serves(slot) if sharded else owner == self.machine.name
        return None if mine else ReplyError(f"MOVED {slot} {owner}:{PORT}")

    def over(self, line: Line) -> None:
        """Take note that a line has ended; who only asked for the map is not cut off by that."""
        super().over(line)
        if line.number in self._for_the_map:
            self._for_the_map.discard(line.number)
            self.breaks.pop()
        self._asking.discard(line.number)
        for lines in self._in_shard.values():
            lines.pop(line.number, None)

    def _reply(self, line: Line, reply: Any) -> None:
        if line.open:
            line.tell(reply)

    # --- messages ----------------------------------------------------------------------------------------------

    def channels(self) -> list[bytes]:
        """Return the channels of its shard on which somebody listens, in order."""
        return sorted(channel for channel, lines in self._in_shard.items() if lines)

    def hears(self, channel: bytes, message: bytes) -> None:
        """Tell what another node has published."""
        if not self.is_down:
            super()._publish(channel, message)

    def hears_in_shard(self, channel: bytes, message: bytes) -> None:
        """Tell what the primary of its shard has published."""
        if not self.is_down:
            self.tell_all(self._in_shard[channel], message)

    def _publish(self, channel: bytes, message: bytes) -> int:
        for other in self.bus:
            self._by_bus(other, partial(other.hears, channel, message))
        return super()._publish(channel, message)

    def _publish_in_shard(self, channel: bytes, message: bytes) -> int | bytes:
        """Tell who listens here, and by the replicas who listens there: only those here are counted."""
        slot = slot_of_key(channel)
        if self.view.owner(slot) != self.machine.name:
            return NOT_LOCAL
        for other in self.bus:
            if other.machine.name in self.view.nodes[self.view.shard(slot)]:
                self._by_bus(other, partial(other.hears_in_shard, channel, message))
        return self.tell_all(self._in_shard[channel], message)

    def _by_bus(self, other: ClusterNodeModel, act: Callable[[], None]) -> None:
        self.scheduler.at(self.scheduler.time + self.scheduler.random.uniform(*BUS), other.machine, act)

    # --- what it learns ----------------------------------------------------------------------------------------

    def learn(self, view: View) -> None:
        """See the cluster anew; who listens for a slot that is another's now is told that this is over."""
        if self.is_down:
            self.scheduler.at(self.down_until, self.machine, lambda: self.learn(view))
            return
        self.down = False
        if view.epoch <= self.view.epoch:
            return
        self.note(f"knows of epoch {view.epoch}")
        before, self.view = self.view, view
        mine = self.machine.name
        self.leaving = {slot: to for slot, to in self.leaving.items() if view.owner(slot) == mine}
        self.coming = {slot for slot in self.coming if view.owner(slot) != mine}
        for channel, lines in self._in_shard.items():
            slot = slot_of_key(channel)
            if view.owner(slot) != before.owner(slot):
                for line in lines.values():
                    line.tell(UNSUBSCRIBED, True)
                lines.clear()
        self._take_role()

    def restart(self, seconds: float, *, lose: bool = False) -> None:
        """Be away for so long, and then refuse keys until others must have said whether it is still a primary."""
        super().restart(seconds, lose=lose)
        self.down = True
        self.scheduler.at(self.down_until + REJOINS, self.machine, lambda: self.learn(self.view))

    def notice(self, epoch: int) -> None:
        """Find that slots are not served, unless it knows of something newer."""
        if not self.is_down and self.view.epoch == epoch:
            self.note("finds slots that nobody serves")
            self.down = True

    def _serves(self, slot: int) -> bool:
        """Return whether a slot is its own, or its primary's: a replica has subscriptions to channels of its shard."""
        return self.machine.name in self.view.nodes[self.view.shard(slot)]

    def _take_role(self) -> None:
        self.role = b"master" if any(self.machine.name == nodes[0] for nodes in self.view.nodes) else b"slave"


def _keys(words: Words) -> Sequence[bytes]:
    """Return the keys, or the channel of a shard, that a command names."""
    if words[0] in (b"EVALSHA", b"EVAL"):
        return words[3 : 3 + int(words[2])]
    if words[0] == b"SSUBSCRIBE":
        return words[1:]
    if words[0] not in KEYLESS:
        raise NotImplementedError(f"the model of a cluster does not know the keys of {words[0].decode()}")
    return ()


class RedisClusterModel:
    """All nodes, and what happens among them. Each shard has a primary and a replica."""

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
        """Return the slots in which there are keys, or channels on which somebody listens, in order."""
        primaries = [self.primary(shard) for shard in range(len(self.view.nodes))]
        words = [word for node in primaries for word in (*node.model.all_keys(), *node.channels())]
        return sorted(set(map(slot_of_key, words)))

    # --- another primary ---------------------------------------------------------------------------------------

    def hand_over(self, shard: int) -> None:
        """Let the replica be the primary, which has all, and both know at once, as by ``CLUSTER FAILOVER``."""
        old, new = self.primary(shard), self.replica(shard)
        new.model.take_keys(old.model.keys())
        view = self._swapped(shard)
        old.learn(view)
        self._spread(view, new)

    def fail_over(self, shard: int, keys: Keys, away: float, beside: float) -> None:
        """Let the replica, which has these keys, be the primary after ``away`` seconds.

        The old one is dead for so long, or, if ``beside``, cut off from the others only, and goes on for so long.
        """
        old, new = self.primary(shard), self.replica(shard)
        new.note(f"takes over in {away:.6f} s")
        new.model.take_keys(keys)
        now, epoch = self.scheduler.time, self.view.epoch
        if not beside:
            old.restart(away)
        for node in self.nodes:
            if node is not old:
                when = now + away * self.scheduler.random.uniform(0.5, 1.0)
                self.scheduler.at(when, node.machine, partial(node.notice, epoch))
        self.scheduler.at(now + away, new.machine, lambda: self._take_over(shard, old, new, now + max(away, beside)))

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
        """Let one node know at once, and the others a little later."""
        first.learn(view)
        for node in self.nodes:
            if node is not first and node is not without:
                when = self.scheduler.time + self.scheduler.random.uniform(0.0, GOSSIP)
                self.scheduler.at(when, node.machine, partial(node.learn, view))

    # --- slots that move ---------------------------------------------------------------------------------------

    def begin_move(self, slot: int, to: int) -> None:
        """Tell both nodes that a slot is on its way; nothing has moved yet."""
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
        """Move what is left, and tell all who has the slot; the one that had it is told a moment later."""
        self.move(slot, to, self.keys_in(slot))
        self.view = replace(self.view, epoch=self.view.epoch + 1, moved={**self.view.moved, slot: to})
        self._spread(self.view, self.primary(to))

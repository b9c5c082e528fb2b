"""One node of a Redis Cluster in simulated time: its view of the cluster, and its replies by that view.

Each is a `RedisServerModel` that checks, before a command with keys, whether it has their slot. If not, it names the
owner as far as it knows (MOVED). If the slot migrates, it replies whether all keys have moved (ASK) or only some
(TRYAGAIN). What it knows is a `View`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.keys import SLOTS, slot_of
from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Connection
from models.redis.commands import OK, Rewrite
from models.redis.server import UNSUBSCRIBED, RedisServerModel, Words

PORT = 6379

BUS = (0.0001, 0.001)
"""Seconds of a message from node to node."""

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
    """One node's view of the cluster.

    Attributes:
        epoch: increases with each change.
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
        view: of the cluster.
        down: whether it knows of slots without a serving node.
        leaving: the slots that migrate to other nodes, and which those are.
        coming: the slots that migrate from other nodes.

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
        self._in_shard: defaultdict[bytes, dict[int, Connection]] = defaultdict(dict)
        self._asking: set[int] = set()
        self._for_the_map: set[int] = set()
        self._take_role()

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Connection, request: Sequence[Words]) -> None:
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

    def over(self, line: Connection) -> None:
        """Remove a closed connection; one that only read the slot map does not count as cut off."""
        super().over(line)
        if line.number in self._for_the_map:
            self._for_the_map.discard(line.number)
            self.breaks.pop()
        self._asking.discard(line.number)
        for lines in self._in_shard.values():
            lines.pop(line.number, None)

    def _reply(self, line: Connection, reply: Any) -> None:
        if line.open:
            line.tell(reply)

    # --- messages ----------------------------------------------------------------------------------------------

    def channels(self) -> list[bytes]:
        """Return the channels of its shard with subscribers, in order."""
        return sorted(channel for channel, lines in self._in_shard.items() if lines)

    def hears(self, channel: bytes, message: bytes) -> None:
        """Deliver a message that another node has published."""
        if not self.is_down:
            super()._publish(channel, message)

    def hears_in_shard(self, channel: bytes, message: bytes) -> None:
        """Deliver a message that the primary of its shard has published."""
        if not self.is_down:
            self.tell_all(self._in_shard[channel], message)

    def _publish(self, channel: bytes, message: bytes) -> int:
        for other in self.bus:
            self._by_bus(other, partial(other.hears, channel, message))
        return super()._publish(channel, message)

    def _publish_in_shard(self, channel: bytes, message: bytes) -> int | bytes:
        """Deliver a message here and at the replicas; only the subscribers here are counted."""
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
        """Take a new view; subscriptions to channels of slots that have moved end with a message."""
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
            if view.owner(slot) not in (before.owner(slot), mine):  # a replica that takes over goes on telling them
                for line in lines.values():
                    line.tell(UNSUBSCRIBED, True)
                lines.clear()
        self._take_role()

    def restart(self, seconds: float, *, lose: bool = False) -> None:
        """Be down for so long, and then refuse keys until the others can have told whether it is still a primary."""
        super().restart(seconds, lose=lose)
        self.down = True
        self.scheduler.at(self.down_until + REJOINS, self.machine, lambda: self.learn(self.view))

    def notice(self, epoch: int) -> None:
        """Learn that slots are not served, unless its view is newer."""
        if not self.is_down and self.view.epoch == epoch:
            self.note("finds slots without a server")
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

"""The model of a cluster and real nodes, asked the same."""

from __future__ import annotations

import random
import secrets
import time
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

import hiredis
from model_sequences import Ear

from leasehold.stores.redis import keys, scripts
from leasehold.stores.redis.cluster.topology import SlotMap, read_slots
from leasehold.stores.redis.connection.base import ReplyError, pack
from leasehold.stores.redis.keys import SLOTS, slot_of
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.servers import Node, RedisCluster
from leasehold_lab.servers.redis.cluster import Migration
from models.redis.cluster import GOSSIP, RedisClusterModel
from models.redis.cluster_node import BUS, PORT, ClusterNodeModel
from models.redis.server import UNSUBSCRIBED

NAMES = ("a", "b", "c")
TICKETS = [b"ticket-%d" % number for number in range(3)]
QUIET = 0.15
"""Seconds in which a message of the real cluster has arrived, whichever way it takes."""

NOT_LOCAL = "non local key"

LATE = 5.0
"""Seconds after which what has not arrived will not."""

Words = list[bytes]


class Listener(Ear):
    """A connection to a model that keeps of messages what they say."""

    def tell(self, reply: Any, message: bool = False) -> None:
        super().tell(("unsubscribed" if reply is UNSUBSCRIBED else first_word(reply)) if message else reply, message)


class Real:
    """A connection to a real node, by RESP3, so that messages come beside replies."""

    def __init__(self, node: Node) -> None:
        self._link = node.connect().socket
        self._reader = hiredis.Reader(replyError=ReplyError)
        self.messages: list[str] = []
        self.ask([b"HELLO", b"3"])

    def ask(self, words: Words) -> Any:
        self._link.sendall(pack(*words))
        while True:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._link.recv(65536))
            elif isinstance(reply, hiredis.PushNotification) and not self._message(reply):
                return list(reply)[:2]
            elif not isinstance(reply, hiredis.PushNotification):
                return reply

    def listen(self) -> None:
        """Read what has come by now."""
        self.ask([b"PING"])

    def _message(self, push: Sequence[Any]) -> bool:
        if push[0] in (b"message", b"smessage"):
            self.messages.append(first_word(push[2]))
        elif push[0] == b"sunsubscribe":
            self.messages.append("unsubscribed")
        else:
            return False
        return True

    def close(self) -> None:
        self._link.close()


def first_word(message: bytes) -> str:
    """Return whom a message tells; nothing if it is that by which listeners are counted."""
    return message.partition(b" ")[0].decode()


def middle(shard: int) -> int:
    """Return the slot in the middle of one of three equal shards."""
    return (2 * shard + 1) * SLOTS // 6


class HalfDone(Exception):
    """A script has removed a key of a slot that is leaving, and may not make it again: the model lets it."""


class Pair:
    """Both clusters. The first three nodes of each are the primaries, in order of their slots."""

    def __init__(self, harness: SimulatedHarness, real: RedisCluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self.namespace = f"p{secrets.token_hex(8)}"
        self.real, self.model = real, RedisClusterModel(harness.scheduler)
        self.nodes = self.all_nodes()
        self.real_links = [Real(node) for node in self.nodes]
        self.lines = [Listener(number) for number in range(len(self.nodes))]
        self.migration: tuple[Migration, int] | None = None  # and the shard to which the slot goes
        self.began = time.monotonic() - self.model.scheduler.time
        self.log: list[str] = []
        self.seen = set[str]()
        self.take_slots()

    def all_nodes(self) -> list[Node]:
        """Return the real primaries and their replicas, when all have found each other."""
        until = time.monotonic() + 20.0
        while True:
            primaries = [self.in_the_middle(shard) for shard in range(3)]
            found = [*primaries, *(node for primary in primaries for node in self.real.replicas_of(primary)[:1])]
            if len(set(found)) == 6:
                return found
            assert time.monotonic() < until
            time.sleep(0.1)

    def in_the_middle(self, shard: int) -> Node:
        """Return the real node that has the slot in the middle of a shard, which is hardly ever moved."""
        (key,) = islice((f"{n}" for n in count() if crc_hqx(b"%d" % n, 0) % SLOTS == middle(shard)), 1)
        return self.real.primary_of(key)

    def take_slots(self) -> None:
        """Let the model have its slots where the real cluster has them by now."""
        at_first, view, known = self.model.view, self.model.view, self.slots(0)
        for slot in range(SLOTS):
            if (shard := self.owner_by(slot, known)) != at_first.shard(slot):
                view = replace(view, epoch=view.epoch + 1, moved={**view.moved, slot: shard})
        self.model.view = view
        words = [keys.mutex_keys(self.namespace, name)[0] for name in NAMES]
        words += [keys.shard_channel(self.namespace, "client", number) for number in range(4)]
        self.telling = {*map(slot_of, words), *(middle(shard) for shard in range(3))}
        for node in self.model.nodes:
            node.learn(view)

    def node(self, number: int) -> ClusterNodeModel:
        return self.model.nodes[number]

    def both(self, number: int, words: Words) -> bool:
        """Send a command to the same node of both; return whether both answer alike."""
        real = self.real_links[number].ask(words)
        line = self.lines[number]
        self.node(number).receive(line, [words])  # type: ignore[arg-type]
        modelled = line.replies.pop()
        if self.migration is not None and NOT_LOCAL in str(real):
            raise HalfDone
        theirs, ours = self.kind(real), self.kind(modelled)
        self.log.append(f"{number} {b' '.join(words)[:70]!r} -> {real!r} {modelled!r}")
        self.seen.add(ours.partition(" ")[0])
        return theirs == ours

    def kind(self, reply: Any) -> str:
        """Say what kind of reply it is, with addresses that mean the same in both."""
        if isinstance(reply, ReplyError):
            words = str(reply).split()
            if words[0] not in ("MOVED", "ASK"):
                return words[0]
            return f"{words[0]} {words[1]} to {self.number_of(words[2])}"
        if isinstance(reply, list):
            return f"list {reply[0] if reply and isinstance(reply[0], int) else len(reply[:2])}"
        return "number" if isinstance(reply, int) else "word"

    def number_of(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        if int(port) == PORT:
            return [node.machine.name for node in self.model.nodes].index(host)
        return [node.port for node in self.nodes].index(int(port))

    # --- steps -------------------------------------------------------------------------------------------------

    def some_name(self) -> str:
        return self.chance.choice(NAMES)

    def some_node(self, slot: int) -> int:
        """Return the node that has a slot, often; or any."""
        if self.chance.random() < 0.2:
            return self.chance.randrange(len(self.nodes))
        if self.migration and self.migration[0].slot == slot and self.chance.random() < 0.5:
            return self.primary(self.migration[1])
        return self.owner(slot)

    def owner(self, slot: int) -> int:
        """Return the node of the model that has a slot."""
        return self.primary(self.model.view.shard(slot))

    def primary(self, shard: int) -> int:
        return self.model.nodes.index(self.model.primary(shard))

    def asks(self) -> None:
        name, ticket = self.some_name(), self.chance.choice(TICKETS)
        all_keys = keys.mutex_keys(self.namespace, name)
        slot = slot_of(all_keys[0])
        channel = self.channel()
        match self.chance.randrange(5):
            case 0:
                script, those, args = scripts.RELEASE, all_keys, [ticket, b"0"]
            case 1:
                script, those, args = scripts.RENEW, all_keys[:1], [ticket, b"30000"]
            case 2:
                other = keys.mutex_keys(self.namespace, self.some_name())
                script, those, args = scripts.RENEW, (all_keys[0], other[0]), [ticket, b"30000", ticket, b"30000"]
            case _:
                script, those = scripts.CLAIM, all_keys
                args = [ticket, b"30000", b"0", b"1", b"0", channel, b"host:1:x", b"m"]
        number = self.some_node(slot)
        if self.chance.random() < (0.6 if self.migration and number == self.primary(self.migration[1]) else 0.1):
            self.check(number, [b"ASKING"])
        self.check(number, [b"EVAL", script.text, b"%d" % len(those), *those, *args])

    def channel(self) -> bytes:
        return keys.shard_channel(self.namespace, "client", self.chance.randrange(4))

    def subscribes(self) -> None:
        channel = self.channel()
        number = self.some_node(slot_of(channel))
        self.check(number, [b"SUBSCRIBE", channel])
        self.check(number, [b"SSUBSCRIBE", channel])

    def moves(self) -> None:
        """Begin to move a slot, or go on with it."""
        if self.migration is None:
            words = [keys.mutex_keys(self.namespace, name)[0] for name in NAMES]
            word = self.chance.choice([*words, self.channel()])
            source = self.model.view.shard(slot_of(word))
            target = (source + self.chance.choice((1, 2))) % 3
            self.migration = self.real.migrate(word, self.nodes[self.primary(target)]), target
            self.model.begin_move(slot_of(word), target)
            return
        migration, target = self.migration
        left = self.model.keys_in(migration.slot)
        if left and self.chance.random() < 0.7:
            some = self.chance.sample(left, self.chance.randint(1, len(left)))
            migration.move(*(key.decode() for key in some))
            self.model.move(migration.slot, target, some)

    def check(self, number: int, words: Words) -> None:
        assert self.both(number, words), "\n".join(self.log)

    async def finishes(self, harness: Harness) -> None:
        """End the move, if there is one, and wait until all know."""
        if self.migration is None:
            return
        migration, target = self.migration
        migration.finish()
        self.model.finish_move(migration.slot, target)
        self.log.append(f"slot {migration.slot} is with {target}")
        self.migration = None
        await self.settled(harness)

    async def hands_over(self, harness: Harness) -> None:
        """Let any replica take over by order."""
        await self.finishes(harness)
        await self.takes_over(harness, self.chance.randrange(3))

    async def takes_over(self, harness: Harness, shard: int) -> None:
        """Let the replica of a shard take over by order."""
        self.log.append(f"the replica of {shard} takes over")
        self.real.ask_to_take_over(self.nodes[self.model.nodes.index(self.model.replica(shard))])
        self.model.hand_over(shard)
        await self.settled(harness)

    async def settled(self, harness: Harness) -> None:
        """Wait until all know of the last change."""
        await harness.sleep(GOSSIP + 2 * BUS[1])
        self.real.wait_until(lambda: all(map(self.agrees, range(len(self.nodes)))), 20.0, "all know of the change")
        self.real.wait_healthy()

    def agrees(self, number: int) -> bool:
        """Return whether a real node sees all slots as the newest view of the model does."""
        known = self.slots(number)
        return all(self.owner_by(slot, known) == self.owner(slot) for slot in self.telling)

    def slots(self, number: int) -> SlotMap:
        """Return who has which slot, as a real node says."""
        return read_slots(self.real_links[number].ask([b"CLUSTER", b"SLOTS"]), "127.0.0.1")

    def owner_by(self, slot: int, known: SlotMap) -> int:
        found = known.owners[slot]
        return -1 if found is None else self.number_of(f"{found[0]}:{found[1]}")

    async def heard(self, harness: Harness) -> None:
        """Compare what was heard."""
        await harness.sleep(2 * BUS[1])
        self.arrived()
        await self.keep_pace(harness)
        for number, (link, line) in enumerate(zip(self.real_links, self.lines, strict=True)):
            assert sorted(link.messages) == sorted(line.messages), f"at {number}\n" + "\n".join(self.log)
            if line.messages:
                self.seen.update("unsubscribed" if one == "unsubscribed" else "heard" for one in line.messages)
            link.messages.clear()
            line.messages.clear()

    async def keep_pace(self, harness: Harness) -> None:
        """Let as much time have passed in the model as has: places are kept for a second."""
        passed = time.monotonic() - self.began
        await harness.sleep(max(passed - self.model.scheduler.time, 0.0))

    def arrived(self) -> None:
        """Wait until what the real nodes have sent has arrived, and read it: what is to come, and nothing else."""
        until = time.monotonic() + LATE
        while True:
            time.sleep(QUIET)
            for link in self.real_links:
                link.listen()
            heard = zip(self.real_links, self.lines, strict=True)
            if all(len(link.messages) >= len(line.messages) for link, line in heard) or time.monotonic() > until:
                return

    def close(self) -> None:
        for link in self.real_links:
            link.close()

"""A Redis Cluster: primaries that share the hash slots among them, each with replicas of its own."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from leasehold_lab.servers.base import free_port, release_port, reserve_port
from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.group import HEALTHY_WITHIN, LINK, Group, Node
from leasehold_lab.servers.redis.replicas import FAST, userinfo
from leasehold_lab.servers.redis.resp import RedisError

SLOTS = 16384

ELECTED = re.compile(r"(\d+ \w+ \d+ [\d:.]+) # Failover election won")
"""A node's log says when it was elected."""

BUS = 10_000
"""What servers before 7.0 add to their port for talk among themselves."""


class RedisCluster(Group):
    """``primaries`` primaries with ``replicas`` replicas each, on free ports of 127.0.0.1.

    Args:
        primaries: how many; they get equal parts of the slots.
        replicas: of each primary.
        node_timeout: seconds of silence after which a node counts as down.
        full_coverage: refuse all slots while some have no server, as Redis does by default.
        password: of the default user of each.
        users: further users of each, as for `RedisServer`.
        tls: speak TLS everywhere.
        config: further settings of each.
        binary: the program.

    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        *,
        node_timeout: float = 1.5,
        full_coverage: bool = True,
        password: str | None = None,
        users: Sequence[str] = (),
        tls: bool = False,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        settings = {
            **FAST,
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": f"{node_timeout * 1000:.0f}",
            "cluster-require-full-coverage": "yes" if full_coverage else "no",
            **({"tls-cluster": "yes"} if tls else {}),
            **(config or {}),
        }
        self._count = primaries
        self._election_every = 2 * max(2 * node_timeout, 2.0)
        self._password = password
        self.nodes: list[Node] = []
        certificates: bool | Certificates = tls
        for _ in range(primaries * (1 + replicas)):
            node = Node.make(password=password, users=users, tls=certificates, config=settings, binary=binary)
            certificates = node.certificates or False
            self._give_bus(node)
            self.nodes.append(node)
        for node in self.nodes:
            node.users = (*node.users[:-1], self.nodes[0].users[-1])
            node._config.update(masteruser=LINK, masterauth=self.nodes[0].secret)
        super().__init__(self.nodes)

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def certificates(self) -> Certificates | None:
        """The files for TLS."""
        return self.nodes[0].certificates

    @property
    def url(self) -> str:
        """The URL that names all nodes; two of them would do."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        scheme = "rediss+cluster" if self.certificates else "redis+cluster"
        return f"{scheme}://{userinfo(self._password)}{hosts}"

    @property
    def primaries(self) -> list[Node]:
        """The nodes that run and serve slots now, by their lowest slot."""
        return [self._by_id(line.id) for line in sorted(self._view(), key=lambda line: line.slots[:1]) if line.serves]

    def primary_of(self, key: str | bytes) -> Node:
        """Return the node that serves ``key`` now."""
        slot = self._any().command("CLUSTER", "KEYSLOT", key)
        for line in self._view():
            if line.serves and any(first <= int(str(slot)) <= last for first, last in line.slots):
                return self._by_id(line.id)
        raise RuntimeError(f"no server has slot {slot} now")

    def replicas_of(self, primary: Node) -> list[Node]:
        """Return the running replicas of a node."""
        master = self.id_of(primary)
        found = [line.id for line in self._view() if line.master == master and not line.failed]
        return [node for node in map(self._by_id, found) if node.running]

    def id_of(self, node: Node) -> str:
        """Return the identity of a node, which outlives restarts."""
        name = next((line.id for line in self._view() if line.port == node.port), None)
        if name is None:
            raise RuntimeError(f"no node of the cluster has port {node.port}")
        return name

    # --- doing -------------------------------------------------------------------------------------------------

    def wait_failover(self, old: Node, within: float = HEALTHY_WITHIN) -> None:
        """Wait until every slot is served, and none by ``old``."""

        def over() -> bool:
            return all(node is not old for node in self.primaries) and self._covered()

        self.wait_until(over, within, "other servers have taken over the slots")

    def catch_up(self, primary: Node, within: float = 10.0) -> None:
        """Wait until each replica of a node, which has one at least, has all that the node has now.

        After a restart that may take a second, though the link is up: after it has sent all its data to a replica, a
        primary sends nothing before that acknowledges them, which it does every second.
        """
        offset = primary.offset

        def level() -> bool:
            replicas = self.replicas_of(primary)
            return bool(replicas) and all(node.offset >= offset for node in replicas)

        self.wait_until(level, within, "the replicas have caught up")

    def ask_to_take_over(self, replica: Node) -> None:
        """Let a replica take over from its primary, which serves, as an operator does.

        Redis begins no new election of a node soon after the last one. The node would win by the votes of that one, for
        an epoch that is over, and be a replica again a moment later. So this waits before it asks.
        """
        elected = [datetime.strptime(when, "%d %b %Y %H:%M:%S.%f") for when in ELECTED.findall(replica.log())]
        self.wait_until(
            lambda: not elected or (datetime.now() - elected[-1]).total_seconds() > self._election_every,
            HEALTHY_WITHIN,
            "the replica may be elected again",
        )
        replica.command("CLUSTER", "FAILOVER")

    def migrate(self, key: str | bytes, target: Node) -> Migration:
        """Begin to move the slot of ``key`` to ``target``; nothing has moved yet. See `Migration`."""
        slot = int(str(self._any().command("CLUSTER", "KEYSLOT", key)))
        source = self.primary_of(key)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return Migration(self, slot, source, target)

    # --- inside ------------------------------------------------------------------------------------------------

    @staticmethod
    def _give_bus(node: Node) -> None:
        if node._major >= 7:
            bus = free_port()
            node._config["cluster-port"] = str(bus)
            node._reserved.append(weakref.finalize(node, release_port, reserve_port(bus)))
        else:
            while node.port + BUS > 65_535:
                node.port = free_port()
            node._config["port"] = str(node.port)

    def _start_all(self) -> None:
        super()._start_all()
        first, primaries = self.nodes[0], self.nodes[: self._count]
        for number, node in enumerate(self.nodes, start=1):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number)
        for number, node in enumerate(primaries):
            slots = range(number * SLOTS // self._count, (number + 1) * SLOTS // self._count)
            node.command("CLUSTER", "ADDSLOTS", *slots)
        for node in self.nodes[1:]:
            bus = node._config.get("cluster-port") or node.port + BUS
            first.command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        self.wait_until(self._all_known, HEALTHY_WITHIN, "all nodes know each other")
        for number, node in enumerate(self.nodes[self._count :]):
            node.command("CLUSTER", "REPLICATE", self.id_of(primaries[number % self._count]))

    def _all_known(self) -> bool:
        views = [list(_lines(node)) for node in self.nodes]
        return all(len(view) == len(self.nodes) and not any(line.handshake for line in view) for view in views)

    def _healthy(self) -> bool:
        if not self._covered():  # the answer of one node, where the rest takes dozens: it is false for the first 2 s
            return False
        primaries = self.primaries
        for node in self.nodes:
            if node.running and node not in primaries:
                if node.info("replication").get("master_link_status") != "up":
                    return False
                if self.id_of(node) not in [line.id for line in self._view() if line.master != "-"]:
                    return False
        running = sum(node.running for node in self.nodes)
        for node in self.nodes:
            seen = [line for line in _lines(node) if not line.failed] if node.running else []
            followers = sum(line.master != "-" for line in seen)
            if node.running and (len(seen) < running or followers < running - len(primaries)):
                return False
        return len(primaries) == self._count

    def _covered(self) -> bool:
        for node in self.nodes:
            if node.running:
                said = str(node.command("CLUSTER", "INFO"))
                if "cluster_state:ok" not in said or f"cluster_slots_ok:{SLOTS}" not in said:
                    return False
        return True

    def _any(self) -> Node:
        return next(node for node in self.nodes if node.running)

    def _view(self) -> list[_Line]:
        """Return the view of the cluster that most answering nodes report."""
        views = [list(_lines(node)) for node in self.nodes if node.running]
        newest = max(views, key=lambda view: max(line.epoch for line in view))
        return newest

    def _by_id(self, name: str) -> Node:
        port = next(line.port for line in self._view() if line.id == name)
        return next(node for node in self.nodes if node.port == port)


@dataclass(frozen=True, slots=True)
class Migration:
    """A slot on its way: both servers know, and its keys are moved by `move`; `finish` ends it.

    While it goes on, a command for keys that have left is answered ``ASK``, one for keys of which some have left
    ``TRYAGAIN``.
    """

    cluster: RedisCluster
    slot: int
    source: Node
    target: Node

    def move(self, *keys: str) -> None:
        """Move these keys; without any, all of the slot."""
        if not keys:
            found = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 10_000)
            keys = tuple(str(key) for key in found) if isinstance(found, list) else ()
        if keys:
            to = ("127.0.0.1", self.target.port, "", 0, 5000, "AUTH2", LINK, self.cluster.nodes[0].secret)
            self.source.command("MIGRATE", *to, "KEYS", *keys)

    def finish(self) -> None:
        """Move what is left, and tell all nodes who has the slot."""
        self.move()
        name = self.cluster.id_of(self.target)
        self.target.command("CLUSTER", "SETSLOT", self.slot, "NODE", name)
        self.source.command("CLUSTER", "SETSLOT", self.slot, "NODE", name)
        for node in self.cluster.nodes:
            if node.running and node not in (self.source, self.target):
                try:
                    node.command("CLUSTER", "SETSLOT", self.slot, "NODE", name)
                except RedisError:  # a replica learns it from its primary
                    continue

    def cancel(self) -> None:
        """Leave the slot where it was; keys that have moved stay where they are."""
        for node in (self.source, self.target):
            node.command("CLUSTER", "SETSLOT", self.slot, "STABLE")


@dataclass(frozen=True, slots=True)
class _Line:
    """A node, as another sees it."""

    id: str
    port: int
    flags: tuple[str, ...]
    master: str
    epoch: int
    slots: tuple[tuple[int, int], ...]

    @property
    def handshake(self) -> bool:
        return "handshake" in self.flags

    @property
    def failed(self) -> bool:
        return "fail" in self.flags or "fail?" in self.flags

    @property
    def serves(self) -> bool:
        return "master" in self.flags and not self.failed and bool(self.slots)


def _lines(node: Node) -> Iterator[_Line]:
    for text in str(node.command("CLUSTER", "NODES")).splitlines():
        words = text.split()
        port = int(words[1].partition("@")[0].rpartition(":")[2])
        spans = [word.split("-") for word in words[8:] if not word.startswith("[")]
        slots = tuple((int(span[0]), int(span[-1])) for span in spans)
        yield _Line(words[0], port, tuple(words[2].split(",")), words[3], int(words[6]), slots)

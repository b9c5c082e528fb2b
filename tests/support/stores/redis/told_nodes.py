"""Nodes of a Redis Cluster that say what a test tells them to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold.stores.redis.cluster.topology import Address
from leasehold.stores.redis.connection.base import ReplyError, RetryableError
from leasehold.stores.redis.connection.settings import Settings
from support.flavors import on_runtimes

SLOT = keys.slot("ns", "x")
A, B, C, D, E = ((host, 1) for host in "abcde")


class Nodes:
    """A cluster: who has which slots, who says so, and who is gone."""

    def __init__(self) -> None:
        self.owners: list[Address] = [A, B, C]  # of equal parts of the slots
        self.named: dict[Address, list[Address]] = {}  # what a node says instead of the truth
        self.gone: set[Address] = set()
        self.mute: set[Address] = set()  # those that do not reply with the map
        self.hung: Any = None  # a signal: no node replies with the map before
        self.refusals: list[ReplyError] = []  # of the owner
        self.exits: type[BaseException] | None = None  # raised by the next close of a store
        self.log: list[tuple[str, Address]] = []
        self.made: dict[Address, list[Node]] = {}

    def make(self, runtime: Any, settings: Settings, channel: bytes, *events: Any) -> Node:
        address = str(settings.options["host"]), int(settings.options["port"])
        node = Node(self, address, channel)
        self.made.setdefault(address, []).append(node)
        return node

    def owner(self, owners: Sequence[Address], name: str = "x") -> Address:
        return owners[keys.slot("ns", name) * len(owners) // keys.SLOTS]

    def asked(self, what: str) -> list[Address]:
        found = [address for event, address in self.log if event == what]
        self.log = [each for each in self.log if each[0] != what]
        return found


class Node:
    """The transport to a node."""

    def __init__(self, cluster: Nodes, address: Address, channel: bytes) -> None:
        self.cluster, self.address, self.channel = cluster, address, channel
        self.closed = False

    async def call(self, command: bytes, *, within: float) -> Any:
        (reply,) = await self.call_all([command], within=within)
        return reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if self.address in self.cluster.gone or self.closed:
            raise RetryableError(f"{self.address} is gone")
        if self.cluster.hung is not None and b"\r\nSLOTS\r\n" in commands[0]:
            await self.cluster.hung.wait(within)
        return [self._reply(command) for command in commands]

    def _reply(self, command: bytes) -> Any:
        cluster = self.cluster
        if b"\r\nSLOTS\r\n" in command and self.address in cluster.mute:
            cluster.log.append(("mute", self.address))
            raise RetryableError(f"{self.address} does not reply")
        if b"\r\nSLOTS\r\n" in command:
            cluster.log.append(("SLOTS", self.address))
            owners = cluster.named.get(self.address, cluster.owners)
            each = keys.SLOTS / len(owners)
            ends = [int(each * (place + 1)) - 1 for place in range(len(owners))]
            ends[-1] = keys.SLOTS - 1
            starts = [0, *(end + 1 for end in ends[:-1])]
            return [
                [start, end, [host.encode(), port]]
                for start, end, (host, port) in zip(starts, ends, owners, strict=True)
            ]
        if b"SCAN" in command:
            return [b"0", []]
        if b"\r\nINFO\r\n" in command:
            return b"cluster_current_epoch:1\r\n"
        if (owner := cluster.owner(cluster.owners)) != self.address:
            return ReplyError(f"MOVED {SLOT} {owner[0]}:{owner[1]}")
        if cluster.refusals:
            return cluster.refusals.pop()
        cluster.log.append(("ok", self.address))
        return [1, 1, 1]

    def generation(self) -> int:
        return 0

    def notify(self, subscriber: Any) -> None:
        subscriber.set()

    async def close(self) -> None:
        if self.channel and self.cluster.exits:
            raised, self.cluster.exits = self.cluster.exits, None
            raise raised
        self.closed = True


class Used:
    """A client of the cluster, whose clock is set by the test."""

    def __init__(self, runtime: Any, monkeypatch: pytest.MonkeyPatch, cluster: Nodes) -> None:
        self.runtime, self.later, self.patch = runtime(), 0.0, monkeypatch.setattr
        now = self.runtime.now
        self.patch(self.runtime, "now", lambda: now() + self.later)
        seed = Settings("a:1", mode="cluster").at(*A)
        self.store = ClusterStore(self.runtime, [seed], "ns", make=cluster.make)  # type: ignore[arg-type]

    def ticket(self) -> Ticket:
        terms = LeaseTerms(LockMode(), Owner("host", 1, "x"), 30.0, 0.0, "")
        return Ticket(ticket_id(self.runtime.random_bytes(16)), terms)

    async def acquire(self, within: float = 2.0) -> None:
        await self.store.try_acquire("x", self.ticket(), join=False, within=within)
        await self.read()

    async def read(self) -> None:
        """Wait for the end of the read of the map that a redirection has started."""
        if (job := self.store._topology._job) is not None:
            await job.join(5.0)


Case = Callable[[Used, Nodes], Coroutine[Any, Any, None]]


def both(case: Case) -> Callable[..., None]:
    """Make a test of a coroutine function that takes a client and its cluster; it runs in both flavors."""

    async def body(runtime: Any) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            cluster = Nodes()
            await case(Used(runtime, monkeypatch, cluster), cluster)

    body.__name__, body.__doc__, body.__module__ = case.__name__, case.__doc__, case.__module__
    return on_runtimes(body)

"""The slot map: which node of a cluster has which slot.

Theory of operation
-------------------
Some nodes are asked at once, and the map with the highest epoch counts: a node that was cut off still has an old one.
Those that a redirection has just named are asked first, and nodes that failed last. Callers that need a failed node
read the map again, at most every `REFRESH_EVERY`: a failed node does not delay callers of other nodes. A redirection
corrects one slot, and lets the map be read again in the background: the named node may have joined later, and all older
ones be gone one day. Only the first caller of a node that is not in the map waits for that: its waiters need a channel
in one of the node's slots. An outdated map is harmless: a node redirects a command for a slot of another, and a replica
is refused at the handshake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import (
    UNSUBSCRIBED,
    MakeTransport,
    ReplyError,
    RetryableError,
    pack,
    refused,
)
from leasehold.stores.redis.connection.failover import SingleFlight
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.keys import SLOTS

ASKED = 3
"""Nodes asked for the map at once."""

ANSWER_WITHIN = 1.0
"""Seconds for a node's reply with the map, at most a third of the caller's time."""

REFRESH_EVERY = 0.25
"""Least seconds between two reads of the map: it bounds the load on a cluster in trouble."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Where each slot is."""

    generation: int  # the cluster's epoch, as known to the node that replied
    owners: tuple[Address | None, ...]  # the primary of each slot; None if no node serves it
    replicas: dict[Address, tuple[Address, ...]]  # of each primary

    @property
    def primaries(self) -> list[Address]:
        """The nodes that serve slots."""
        return [*self.replicas]


class Topology:
    """The slot map of one client."""

    def __init__(
        self,
        runtime: Runtime,
        seeds: Sequence[Settings],
        make: MakeTransport,
        refresh: Callable[[float], Coroutine[Any, Any, object]],
    ) -> None:
        """Begin without a map; ``refresh`` calls `fresh` for a read in the background, and uses what has changed."""
        self._runtime = runtime
        self._use = refresh
        self._job: Job | None = None
        self._seeds = list(seeds)
        self._make = make
        self.map: SlotMap | None = None  # the last; None before the first
        self._learned: dict[int, Address] = {}
        self.named: set[Address] = set()
        """The nodes that redirections named before the last read: it may be older than they are."""
        self._stale = True
        self._redirected = False
        self._suspects: set[Address] = set()
        self._refreshed = float("-inf")
        self._single_flight = SingleFlight(runtime)

    @property
    def where(self) -> str:
        """The cluster, for messages to people."""
        return f"the cluster at {', '.join(seed.where for seed in self._seeds)}"

    def settings(self, address: Address) -> Settings:
        """Return how to connect to a node."""
        return self._seeds[0].at(*address)

    def suspect(self, address: Address) -> None:
        """Suspect a node that did not reply, or that refused to serve its slots."""
        self._suspects.add(address)
        self._stale = True

    def suspected(self, address: Address | None) -> bool:
        """Return whether a node is unknown (None), or has failed since the map was read."""
        return address is None or address in self._suspects

    def doubtful(self, slot: int) -> bool:
        """Return whether the caller should read the map again before it uses the node of a slot."""
        if self.suspected(owner := self.owner(slot)):
            return True
        if self._redirected and self._due():
            if self.map is None or owner not in self.map.replicas:
                return True
            if self._job is None or not self._job.alive():
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    self._job = self._runtime.spawn(self._read, "leasehold-map")
        return False

    def learn(self, slot: int, address: Address) -> None:
        """Learn the node of a slot from a redirection."""
        self._learned[slot] = address
        self._stale = self._redirected = True

    def owner(self, slot: int) -> Address | None:
        """Return the node of a slot; None if it is unknown."""
        found = self._learned.get(slot)
        return found or (None if self.map is None else self.map.owners[slot])

    async def fresh(self, within: float) -> SlotMap:
        """Return the map, read again if it is in doubt.

        Raises:
            StoreUnavailable: no node replies with one.
        """
        if self.map is None or (self._stale and self._due()):
            await self._single_flight.run(partial(self._refresh, within), within)
        if self.map is None:
            raise RetryableError(f"{self.where}: its slot map is still being read")
        return self.map

    async def close(self) -> None:
        """End the read in the background."""
        if (job := self._job) is not None:
            job.cancel()
            await job.join(ANSWER_WITHIN)

    def after_fork(self) -> None:
        """Forget the work of the parent in a forked child."""
        self._job = None
        self._single_flight = SingleFlight(self._runtime)
        self._stale = True

    # --- reading the map ---------------------------------------------------------------------------------------

    async def _read(self) -> None:
        with contextlib.suppress(StoreUnavailable, Unsupported):
            await self._use(3 * ANSWER_WITHIN)

    def _due(self) -> bool:
        return self._runtime.now() - self._refreshed >= REFRESH_EVERY

    async def _refresh(self, within: float) -> None:
        self._redirected = False  # first: others, whose nodes are known, do not wait for this
        began = self._runtime.now()
        each = max(min(ANSWER_WITHIN, within / 3), 0.05)
        failures: list[BaseException] = []
        nodes = self._to_ask()
        for start in range(0, len(nodes), ASKED):
            asked = nodes[start : start + ASKED]
            answers = await self._runtime.gather(*[self._read_map(settings, each) for settings in asked])
            maps = [answer for answer in answers if isinstance(answer, SlotMap)]
            if maps:
                self.map = max(maps, key=lambda found: found.generation)
                self.named, self._learned, self._suspects = {*self._learned.values()}, {}, set()
                self._stale = False
                self._refreshed = self._runtime.now()
                return
            failures += [answer for answer in answers if isinstance(answer, BaseException)]
            if self._runtime.now() - began > within:
                break
        self._refreshed = self._runtime.now()
        if self.map is None:
            raise self._failure(failures)

    def _failure(self, failures: Sequence[BaseException]) -> Exception:
        """Return the reason why no node replied: a mistake that no retry cures comes first."""
        for failure in failures:
            if isinstance(failure, Exception) and not isinstance(failure, RetryableError):
                return failure
        reasons = "; ".join(dict.fromkeys(map(str, failures)))
        return RetryableError(f"no node of the cluster replied with the slot map: {reasons}")

    def _to_ask(self) -> list[Settings]:
        """Return the known nodes in random order, new ones first and failed ones last, and those of the URL.

        If none of the first replies, all may have other addresses: one of the URL is in each group that follows.
        """
        named = dict.fromkeys(self._learned.values())
        known = [*named]
        if self.map is not None:
            for primary, replicas in self.map.replicas.items():
                known += [primary, *replicas]
        rank = {node: (node in self._suspects, node not in named, self._runtime.jitter()) for node in known}
        spread = sorted(rank, key=rank.__getitem__)
        settings = [self.settings(address) for address in spread]
        rest = [seed for seed in self._seeds if seed.where not in {each.where for each in settings}]
        if settings:
            rest.sort(key=lambda _: self._runtime.jitter())
        for place, seed in enumerate(rest):
            settings.insert(ASKED * (place + 1), seed)
        return [replace(each, any_role=True) for each in settings]

    async def _read_map(self, settings: Settings, within: float) -> SlotMap:
        transport = self._make(self._runtime, settings, *UNSUBSCRIBED)
        try:
            slots, info = await transport.call_all(
                [pack(b"CLUSTER", b"SLOTS"), pack(b"CLUSTER", b"INFO")], within=within
            )
        finally:
            await transport.close()
        if isinstance(slots, ReplyError):
            raise refused(settings.where, slots)
        host = str(settings.options["host"])
        found = read_slots(slots, host)
        if not found.primaries:
            raise RetryableError(f"the node at {settings.where} knows of no node that serves a slot")
        generation = 0 if isinstance(info, ReplyError) else _generation(info)
        return replace(found, generation=generation)


def read_slots(reply: Any, asked: str) -> SlotMap:
    """Read the reply to ``CLUSTER SLOTS``; ``asked``: the host that replied, for a node that does not know its name."""
    owners: list[Address | None] = [None] * SLOTS
    replicas: dict[Address, tuple[Address, ...]] = {}
    for first, last, *nodes in reply:
        addresses = [_address(node, asked) for node in nodes]
        if addresses:
            replicas[addresses[0]] = tuple(addresses[1:])
            owners[int(first) : int(last) + 1] = [addresses[0]] * (int(last) - int(first) + 1)
    return SlotMap(0, tuple(owners), replicas)


def _address(node: Any, asked: str) -> Address:
    """Read host and port. The host is what the cluster announces: an address, a name, or nothing."""
    host = b"" if node[0] is None else cast("bytes", node[0])
    return (asked if host in (b"", b"?") else host.decode()), int(node[1])


def _generation(info: bytes) -> int:
    for line in info.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == "cluster_current_epoch" and value.isdecimal():
            return int(value)
    return 0

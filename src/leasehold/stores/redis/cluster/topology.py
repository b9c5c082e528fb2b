"""Which node of a cluster has which slot.

Theory of operation
-------------------
Some nodes are asked at once, and the one with the highest epoch is believed: a node that was cut off still tells how
things were. Nodes that did not answer of late are asked last. The map is asked for again, at most every
`REFRESH_EVERY`, by whoever needs a node that did not answer, and by nobody else: what befalls one node keeps nobody
waiting who needs another. One slot at a time is learned from redirections. A map that is out of date harms nobody: a
node that is asked for a slot of another says so, and a replica is refused when it is connected to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import MakeTransport, ReplyError, RetryableError, pack, refused
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.single_flight import SingleFlight

SLOTS = 16384

ASKED = 3
"""Nodes that are asked for the map at once."""

ANSWER_WITHIN = 1.0
"""Seconds that a node gets to tell the map, and at most a third of the caller's time."""

REFRESH_EVERY = 0.25
"""Seconds between two looks at the map, at least: it bounds what a cluster in trouble is asked."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Where each slot is.

    Attributes:
        epoch: the cluster's, as the node knew it that told.
        owners: the primary of each slot; None if nobody serves it.
        replicas: of each primary.

    """

    generation: int
    owners: tuple[Address | None, ...]
    replicas: dict[Address, tuple[Address, ...]]

    @property
    def primaries(self) -> list[Address]:
        """All that serve slots."""
        return [*self.replicas]


class Topology:
    """The slot map of one client."""

    def __init__(self, runtime: Runtime, seeds: Sequence[Settings], make: MakeTransport) -> None:
        self._runtime = runtime
        self._seeds = list(seeds)
        self._make = make
        self._map: SlotMap | None = None
        self._learned: dict[int, Address] = {}
        self._stale = True
        self._suspects: set[Address] = set()
        self._looked = float("-inf")
        self._together = SingleFlight(runtime)

    @property
    def where(self) -> str:
        """What to call it in messages to people."""
        return f"the cluster at {', '.join(seed.where for seed in self._seeds)}"

    def settings(self, address: Address) -> Settings:
        """Return how to speak to a node."""
        return self._seeds[0].at(*address)

    def suspect(self, address: Address) -> None:
        """Take note that a node did not answer, or not as one that has its slots."""
        self._suspects.add(address)
        self._stale = True

    def suspected(self, address: Address | None) -> bool:
        """Say whether a node has failed since the map was read."""
        return address is None or address in self._suspects

    def learn(self, slot: int, address: Address) -> None:
        """Take note of a redirection."""
        self._learned[slot] = address
        self._stale = True

    def owner(self, slot: int) -> Address | None:
        """Return where a slot is, as far as known."""
        found = self._learned.get(slot)
        return found or (None if self._map is None else self._map.owners[slot])

    def known(self) -> SlotMap | None:
        """Return the last map."""
        return self._map

    async def fresh(self, within: float) -> SlotMap:
        """Return the map, asked for again if there is doubt.

        Raises:
            StoreUnavailable: no node tells.

        """
        if self._map is None or (self._stale and self._runtime.now() - self._looked >= REFRESH_EVERY):

            async def look() -> None:
                await self._look(within)

            await self._together.run(look, within)
        if self._map is None:
            raise RetryableError(f"{self.where}: its nodes are still being asked who has which slot")
        return self._map

    def after_fork(self) -> None:
        """Let go of what the parent was doing."""
        self._together = SingleFlight(self._runtime)
        self._stale = True

    # --- inside ------------------------------------------------------------------------------------------------

    async def _look(self, within: float) -> None:
        began = self._runtime.now()
        each = max(min(ANSWER_WITHIN, within / 3), 0.05)
        failures: list[BaseException] = []
        nodes = self._to_ask()
        for start in range(0, len(nodes), ASKED):
            asked = nodes[start : start + ASKED]
            answers = await self._runtime.gather(*[self._told(settings, each) for settings in asked])
            maps = [answer for answer in answers if isinstance(answer, SlotMap)]
            if maps:
                self._map = max(maps, key=lambda found: found.generation)
                self._learned, self._suspects = {}, set()
                self._stale = False
                self._looked = self._runtime.now()
                return
            failures += [answer for answer in answers if isinstance(answer, BaseException)]
            if self._runtime.now() - began > within:
                break
        self._looked = self._runtime.now()
        if self._map is None:
            raise self._failure(failures)

    def _failure(self, failures: Sequence[BaseException]) -> Exception:
        """Say why no node told: a mistake that no later time mends comes first."""
        for failure in failures:
            if isinstance(failure, Exception) and not isinstance(failure, RetryableError):
                return failure
        reasons = "; ".join(dict.fromkeys(map(str, failures)))
        return RetryableError(f"no node of the cluster tells which has which slot: {reasons}")

    def _to_ask(self) -> list[Settings]:
        """Return the nodes known, in random order, those that failed last, and then those that the URL names."""
        known: list[Address] = []
        if self._map is not None:
            for primary, replicas in self._map.replicas.items():
                known += [primary, *replicas]
        spread = sorted(known, key=lambda node: (node in self._suspects, self._runtime.jitter()))
        settings = [self.settings(address) for address in spread]
        rest = [seed for seed in self._seeds if seed.where not in {each.where for each in settings}]
        return [replace(each, any_role=True) for each in (*settings, *rest)]

    async def _told(self, settings: Settings, within: float) -> SlotMap:
        transport = self._make(self._runtime, settings, b"", _nothing, _silence)
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
    """Read the reply to ``CLUSTER SLOTS`` of the host ``asked``, which a node that does not know its own name means."""
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


def _nothing(message: bytes) -> None:
    """Hear nothing: these transports do not subscribe."""


def _silence() -> None:
    """Miss nothing either."""

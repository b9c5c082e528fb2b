"""Those of one client who wait for names on a Redlock: who is told what, by how many nodes, and who watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leasehold._model import RenewalResult, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores.redis.redlock import majority
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes
from leasehold.stores.redis.redlock.subscriptions import SUBSCRIBE_WITHIN, Subscriptions

IDLE = 10
"""Leases after which a waiter asks again that need not:

another watches the holder, and the watchdog renews its place.
"""

GRACE = 0.01
"""Seconds after the first node's word that its vote can be had, for which a waiter waits for that of a majority."""

AT_LEAST = 0.001
"""Seconds. Nodes count in milliseconds, so a lease has surely ended one after its count did."""

TRY_AGAIN = 0.05
"""Seconds after which a waiter asks again that no majority can be listened to for; with jitter up to thrice as long."""


class Waiting:
    """All of a client. Used from many threads at once."""

    def __init__(self, runtime: Runtime, panel: QuorumNodes, channel: bytes) -> None:
        self._runtime = runtime
        self._quorum = panel
        self._channel = channel
        self._slots = Slots(runtime)
        self._told: dict[str, dict[int, float]] = {}  # by ticket: which nodes have told it, and when
        self._subscriptions = Subscriptions(runtime, panel, lambda: next(iter(self._slots), None) is not None)

    def add(self, name: str, ticket: Ticket) -> None:
        """Wait for ``name``; called before the claim, since a message may overtake its reply."""
        self._slots.add(name, ticket).news = False
        self._told[ticket.id] = {}

    def knows(self, ticket: Ticket) -> bool:
        """Say whether a ticket waits."""
        return ticket.id in self._slots

    def remove(self, ticket: Ticket) -> None:
        """Wait no longer."""
        mine = self._slots.get(ticket.id)
        next_waiter = self._slots.remove(ticket.id)
        self._told.pop(ticket.id, None)
        for slot in (mine, next_waiter):
            if slot is not None:
                _wake(slot)  # one may still sleep, and the other watches the holder's lease from now on

    def mark(self) -> tuple[int, ...]:
        """Return what each node's subscription was."""
        return self._subscriptions.generations()

    def channels(self, mark: Sequence[int]) -> Sequence[bytes]:
        """Return where each node can tell us something: nowhere, where we do not listen yet."""
        return [node.channel if generation else b"" for node, generation in zip(self._quorum.nodes, mark, strict=True)]

    def ask_again(self, ticket: Ticket, after: float) -> float:
        """Return seconds after which a ticket asks again: one of each name watches the holder's lease, for all."""
        slot = self._slots.get(ticket.id)
        if slot is None or self._slots.watches(slot):
            return after + AT_LEAST
        return after + IDLE * ticket.terms.lease

    async def changed(self, ticket: Ticket, mark: tuple[int, ...] | None, timeout: float) -> None:
        """Sleep until a majority of nodes may have their votes to give, at most ``timeout`` seconds."""
        until = self._runtime.now() + timeout
        slot = self._slots.get(ticket.id)
        if slot is None or mark is None:
            await self._runtime.sleep(timeout)
            return
        if not await self._listens(until):
            await self._runtime.sleep(min(timeout, TRY_AGAIN * (1 + 2 * self._runtime.jitter())))
            return
        heard = sum(
            generation != 0 and generation == before for generation, before in zip(self.mark(), mark, strict=True)
        )
        if heard < self._quorum.majority:
            return  # what was freed before is told to nobody: ask once more
        signal = slot.ready(self._runtime)
        while not slot.news and (left := self._left(ticket, until)) > 0:
            await signal.wait(left)
            signal.clear()
        slot.read()

    def _left(self, ticket: Ticket, until: float) -> float:
        """Return seconds for which a waiter is to sleep, as far as is known by now."""
        told = self._told.get(ticket.id)
        if told:
            if len(told) >= self._quorum.majority:
                return 0.0
            until = min(until, min(told.copy().values()) + GRACE)
        return until - self._runtime.now()

    async def _listens(self, until: float) -> bool:
        """Make sure that a majority can be heard."""
        until = min(until, self._runtime.now() + SUBSCRIBE_WITHIN)
        while not self._subscriptions.open():
            if self._runtime.now() >= until:
                return False
            await self._subscriptions.opening(until - self._runtime.now())
        return True

    def heard(self, node: Node, message: bytes) -> None:
        """Take the word of a node that its vote can be had."""
        ticket = message.decode("ascii", "replace")
        told, slot = self._told.get(ticket), self._slots.get(ticket)
        if told is None or slot is None:
            return
        told.setdefault(node.index, self._runtime.now())
        slot.set()

    def silence(self) -> None:
        """Let all ask again if so few nodes can be heard that a release would be missed."""
        if sum(map(bool, self.mark())) < self._quorum.majority:
            for slot in self._slots:
                _wake(slot)

    def renewed(self, results: Mapping[str, RenewalResult], answers: Mapping[int, Mapping[str, int]]) -> None:
        """Wake those who are worth asking again: nobody knows them any more, they hold, or the name is free."""
        names: dict[str, None] = {}
        for ticket, result in results.items():
            slot = self._slots.get(ticket)
            if slot is None:
                continue
            names[slot.name] = None
            free = sum(found.get(ticket) == majority.FREE for found in answers.values())
            if result in (RenewalResult.HELD, RenewalResult.GONE) or free >= self._quorum.majority:
                _wake(slot)
        for name in names:  # who watched may have got the name since
            if (next_waiter := self._slots.unarmed(name)) is not None:
                _wake(next_waiter)

    async def close(self, within: float) -> None:
        """End the listeners: their nodes are closed."""
        for slot in self._slots:
            _wake(slot)
        await self._subscriptions.close(within)

    def after_fork(self, channel: bytes) -> None:
        """Forget, in a forked child, who waits in the parent."""
        self._channel = channel
        self._slots = Slots(self._runtime)
        self._told = {}
        self._subscriptions.after_fork()


def _wake(slot: Slot) -> None:
    slot.news = True
    slot.set()

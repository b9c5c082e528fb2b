"""Those of one client who wait for names on a Redlock: who is notified what, by how many nodes, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from leasehold._model import RenewalResult, Ticket
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores.redis.connection.base import NotPermitted
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.node import LONGEST_SKIP, Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening a subscription may take."""

OPENING = 0.002
"""Seconds between two looks whether subscriptions have been opened."""

LINGER = 10.0
"""Seconds after which a listener for whom nobody waits ends."""


class Subscriptions:
    """One listener for each node: a task, or a thread. It subscribes anew when the connection breaks."""

    def __init__(self, runtime: Runtime, quorum: QuorumNodes, wanted: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._quorum = quorum
        self._wanted = wanted
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._jobs: dict[int, Job] = {}
        self._denied: dict[int, NotPermitted] = {}

    def generations(self) -> tuple[int, ...]:
        """Return the number of each node's subscription that stands now, 0 where none does."""
        return tuple(node.transport.generation() for node in self._quorum.nodes)

    def open(self) -> bool:
        """Start listening where nobody does; return whether a majority is heard.

        Raises:
            NotPermitted: so many nodes refuse to be listened to that it never will be.

        """
        with self._mutex:
            for node in self._quorum.nodes:
                job = self._jobs.get(node.index)
                if (job is None or not job.alive()) and not self._quorum.closed and node.index not in self._denied:
                    self._jobs[node.index] = self._runtime.spawn(partial(self._listen, node), "leasehold-listen")
        if len(self._quorum) - len(self._denied) < self._quorum.majority:
            raise next(iter(self._denied.values()))
        return sum(map(bool, self.generations())) >= self._quorum.majority

    async def opening(self, timeout: float) -> None:
        """Wait until one more node is heard, or so; at most ``timeout`` seconds."""
        await self._runtime.sleep(min(timeout, OPENING))

    async def _listen(self, node: Node) -> None:
        idle_since, pause = self._runtime.now(), 0.05
        while not self._quorum.closed:
            if self._wanted():
                idle_since = self._runtime.now()
            elif self._runtime.now() - idle_since > LINGER:
                return
            node.subscriber.rest()
            try:
                await node.transport.listen(SUBSCRIBE_WITHIN)
                pause = 0.05
                await node.transport.hear(node.subscriber, LINGER)
            except NotPermitted as error:
                self._denied[node.index] = error
                return
            except (StoreUnavailable, Unsupported):
                await node.subscriber.ready(self._runtime).wait(pause * (0.5 + self._runtime.jitter() / 2))
                pause = min(2 * pause, LONGEST_SKIP)

    async def close(self, within: float) -> None:
        """Wait for the listeners to end: their nodes are closed."""
        for job in list(self._jobs.values()):
            await job.join(within)

    def after_fork(self) -> None:
        """Forget, in a forked child, who listens in the parent."""
        self._reset()


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

    def __init__(self, runtime: Runtime, quorum: QuorumNodes, channel: bytes) -> None:
        self._runtime = runtime
        self._quorum = quorum
        self._channel = channel
        self._slots = Slots(runtime)
        self._notified: dict[str, dict[int, float]] = {}  # by ticket: which nodes have notified it, and when
        self._subscriptions = Subscriptions(runtime, quorum, lambda: next(iter(self._slots), None) is not None)

    def add(self, name: str, ticket: Ticket) -> None:
        """Wait for ``name``; called before the claim, since a message may overtake its reply."""
        self._slots.add(name, ticket).news = False
        self._notified[ticket.id] = {}

    def is_waiting(self, ticket: Ticket) -> bool:
        """Say whether a ticket waits."""
        return ticket.id in self._slots

    def remove(self, ticket: Ticket) -> None:
        """Wait no longer."""
        mine = self._slots.get(ticket.id)
        next_waiter = self._slots.remove(ticket.id)
        self._notified.pop(ticket.id, None)
        for slot in (mine, next_waiter):
            if slot is not None:
                _wake(slot)  # one may still sleep, and the other watches the holder's lease from now on

    def generations(self) -> tuple[int, ...]:
        """Return what each node's subscription was."""
        return self._subscriptions.generations()

    def channels(self, mark: Sequence[int]) -> Sequence[bytes]:
        """Return where each node can tell us something: nowhere, where we do not listen yet."""
        return [node.channel if generation else b"" for node, generation in zip(self._quorum.nodes, mark, strict=True)]

    def retry_after(self, ticket: Ticket, after: float) -> float:
        """Return seconds after which a ticket asks again: one of each name watches the holder's lease, for all."""
        slot = self._slots.get(ticket.id)
        if slot is None or self._slots.watches(slot):
            return after + AT_LEAST
        return after + IDLE * ticket.terms.lease

    async def wait(self, ticket: Ticket, mark: tuple[int, ...] | None, timeout: float) -> None:
        """Sleep until a majority of nodes may have their votes to give, at most ``timeout`` seconds."""
        until = self._runtime.now() + timeout
        slot = self._slots.get(ticket.id)
        if slot is None or mark is None:
            await self._runtime.sleep(timeout)
            return
        if not await self._subscribe(until):
            await self._runtime.sleep(min(timeout, TRY_AGAIN * (1 + 2 * self._runtime.jitter())))
            return
        heard = sum(
            generation != 0 and generation == before
            for generation, before in zip(self.generations(), mark, strict=True)
        )
        if heard < self._quorum.majority:
            return  # what was freed before is notified to nobody: ask once more
        signal = slot.ready(self._runtime)
        while not slot.news and (left := self._left(ticket, until)) > 0:
            await signal.wait(left)
            signal.clear()
        slot.read()

    def _left(self, ticket: Ticket, until: float) -> float:
        """Return seconds for which a waiter is to sleep, as far as is known by now."""
        notified = self._notified.get(ticket.id)
        if notified:
            if len(notified) >= self._quorum.majority:
                return 0.0
            until = min(until, min(notified.copy().values()) + GRACE)
        return until - self._runtime.now()

    async def _subscribe(self, until: float) -> bool:
        """Make sure that a majority can be heard."""
        until = min(until, self._runtime.now() + SUBSCRIBE_WITHIN)
        while not self._subscriptions.open():
            if self._runtime.now() >= until:
                return False
            await self._subscriptions.opening(until - self._runtime.now())
        return True

    def on_message(self, node: Node, message: bytes) -> None:
        """Take the word of a node that its vote can be had."""
        ticket = message.decode("ascii", "replace")
        notified, slot = self._notified.get(ticket), self._slots.get(ticket)
        if notified is None or slot is None:
            return
        notified.setdefault(node.index, self._runtime.now())
        slot.set()

    def on_silence(self) -> None:
        """Let all ask again if so few nodes can be heard that a release would be missed."""
        if sum(map(bool, self.generations())) < self._quorum.majority:
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
            free = sum(found.get(ticket) == protocol.FREE for found in answers.values())
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
        self._notified = {}
        self._subscriptions.after_fork()


def _wake(slot: Slot) -> None:
    slot.news = True
    slot.set()

"""The waiters of one client on a Redlock: its subscriptions to the nodes, and which nodes notified which waiter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from leasehold._model import RenewalResult, Ticket
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.slots import Slots
from leasehold.stores.redis.connection.base import NotPermitted
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.node import LONGEST_SKIP, Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening a subscription may take."""

OPENING = 0.002
"""Seconds between two checks whether subscriptions are open."""

LINGER = 10.0
"""Seconds without waiters after which a listener ends."""

IDLE = 10
"""Leases after which a waiter retries that does not watch the holder.

It need not: another waiter watches the holder, and the watchdog renews the queue entry.
"""

GRACE = 0.01
"""Seconds that a waiter waits for a majority to notify it, after the first node did."""

AT_LEAST = 0.001
"""Seconds added to a lease: nodes count in milliseconds, so it may end one millisecond after its count."""

TRY_AGAIN = 0.05
"""Seconds after which a waiter retries without subscriptions to a majority; with jitter up to three times as long."""

DENIED_FOR = 10.0
"""Seconds for which a node that denied a subscription is not asked again, while others notify the waiters."""


class Waiting:
    """The waiters of a client. Thread-safe."""

    def __init__(self, runtime: Runtime, quorum: QuorumNodes, poll: float) -> None:
        """Begin without waiters; ``poll``: seconds, on average, after which one of each name retries; 0 for never."""
        self._runtime = runtime
        self._quorum = quorum
        self._poll = poll
        self._slots = Slots(runtime)
        self._reset()

    def _reset(self) -> None:
        self._notified: dict[str, dict[int, float]] = {}  # by ticket: which nodes have notified it, and when
        self._mutex = self._runtime.mutex()
        self._listeners: dict[int, Job] = {}  # by node: a task or a thread, which subscribes anew when that is needed
        self._denied: dict[int, tuple[NotPermitted, float]] = {}

    def add(self, name: str, ticket: Ticket) -> None:
        """Add a waiter. Called before the votes are asked for, since a message may arrive before their reply."""
        self._slots.add(name, ticket).news = False
        self._notified[ticket.id] = {}
        for node in self._quorum.nodes:  # a dead subscription must be found in time for the shortest lease
            if ticket.terms.lease < node.subscriber.lease:
                node.subscriber.lease = ticket.terms.lease
                node.wake_listener()

    def is_waiting(self, ticket: Ticket) -> bool:
        return ticket.id in self._slots

    def remove(self, ticket: Ticket) -> None:
        mine = self._slots.get(ticket.id)
        next_waiter = self._slots.remove(ticket.id)
        self._notified.pop(ticket.id, None)
        for slot in (mine, next_waiter):
            if slot is not None:
                slot.wake()  # the first may still sleep; the other watches the holder's lease from now on

    def generations(self) -> tuple[int, ...]:
        """Return the generation of each node's subscription; 0 where none is open."""
        return tuple(node.transport.generation() for node in self._quorum.nodes)

    def channels(self, mark: Sequence[int]) -> Sequence[bytes]:
        """Return the channel on which each node can notify us; empty where we do not listen yet."""
        return [node.channel if generation else b"" for node, generation in zip(self._quorum.nodes, mark, strict=True)]

    def retry_after(self, ticket: Ticket, after: float) -> float:
        """Return seconds after which a ticket retries. One waiter of each name watches the holder's lease for all."""
        slot = self._slots.get(ticket.id)
        if slot is None or self._slots.enlist(slot):
            return min(after + AT_LEAST, self._poll * (0.5 + self._runtime.jitter()) or after + AT_LEAST)
        return after + IDLE * ticket.terms.lease

    async def wait(self, ticket: Ticket, mark: tuple[int, ...] | None, timeout: float) -> None:
        """Sleep until the votes of a majority may be free, at most ``timeout`` seconds."""
        until = self._runtime.now() + timeout
        slot = self._slots.get(ticket.id)
        if slot is None:
            return  # released meanwhile: the client closes, or the acquire was cancelled
        if mark is None:
            await self._runtime.sleep(timeout)
            return
        if not await self._subscribe(until):
            await self._runtime.sleep(min(timeout, TRY_AGAIN * (1 + 2 * self._runtime.jitter())))
            return
        unbroken = sum(
            generation != 0 and generation == before
            for generation, before in zip(self.generations(), mark, strict=True)
        )
        if unbroken < self._quorum.majority:
            return  # a release during the gap sent no message to us: retry once
        signal = slot.ready(self._runtime)
        while not slot.news and (left := self._left(ticket, until)) > 0:
            await signal.wait(left)
            signal.clear()
        slot.read()

    def _left(self, ticket: Ticket, until: float) -> float:
        """Return seconds that a waiter sleeps, as far as is known now."""
        notified = self._notified.get(ticket.id)
        if notified:
            if len(notified) >= self._quorum.majority:
                return 0.0
            until = min(until, min(notified.copy().values()) + GRACE)
        return until - self._runtime.now()

    async def _subscribe(self, until: float) -> bool:
        """Open subscriptions to a majority; return whether that succeeded in time."""
        until = min(until, self._runtime.now() + SUBSCRIBE_WITHIN)
        while not self._open():
            if self._runtime.now() >= until:
                return False
            await self._runtime.sleep(min(until - self._runtime.now(), OPENING))
        return True

    def _open(self) -> bool:
        """Start missing listeners; return whether the subscriptions to a majority are open.

        Raises:
            NotPermitted: too many nodes refuse a subscription.
        """
        now = self._runtime.now()
        with self._mutex:
            for index, (_, until) in list(self._denied.items()):
                if until <= now:
                    self._denied.pop(index)
            for node in self._quorum.nodes:
                job = self._listeners.get(node.index)
                if (job is None or not job.alive()) and not self._quorum.closed and node.index not in self._denied:
                    self._listeners[node.index] = self._runtime.spawn_loop(
                        partial(self._listen, node), "leasehold-listen"
                    )
            if len(self._quorum) - len(self._denied) < self._quorum.majority:
                error, _ = next(iter(self._denied.values()))
                self._denied = {}  # the next wait tries again: the right may have been granted by then
                raise error
        return self._is_open()

    def _is_open(self) -> bool:
        return sum(map(bool, self.generations())) >= self._quorum.majority

    async def _listen(self, node: Node) -> None:
        idle_since, pause = self._runtime.now(), 0.05
        while not self._quorum.closed:
            if next(iter(self._slots), None) is not None:
                idle_since = self._runtime.now()
            elif self._runtime.now() - idle_since > LINGER:
                return
            node.subscriber.clear()
            try:
                await node.transport.listen(SUBSCRIBE_WITHIN)
                pause = 0.05
                await node.transport.receive(node.subscriber, LINGER)
            except NotPermitted as error:
                self._denied[node.index] = error, self._runtime.now() + DENIED_FOR
                return
            except (StoreUnavailable, Unsupported):
                await node.subscriber.ready(self._runtime).wait(pause * (0.5 + self._runtime.jitter() / 2))
                pause = min(2 * pause, LONGEST_SKIP)

    def on_message(self, node: Node, message: bytes) -> None:
        """Record that a node notified a waiter: its vote is free."""
        ticket = message.decode("ascii", "replace")
        notified, slot = self._notified.get(ticket), self._slots.get(ticket)
        if notified is None or slot is None:
            return
        notified.setdefault(node.index, self._runtime.now())
        slot.set()

    def on_silence(self) -> None:
        """Let all waiters retry if so few subscriptions are open that a release would be missed."""
        if not self._is_open():
            self._wake_all()

    def renewed(self, results: Mapping[str, RenewalResult], answers: Mapping[int, Mapping[str, int]]) -> None:
        """Wake waiters that should retry: no majority knows them, they hold already, or the name is free."""
        names: dict[str, None] = {}
        for ticket, result in results.items():
            slot = self._slots.get(ticket)
            if slot is None:
                continue
            names[slot.name] = None
            free = sum(found.get(ticket) == protocol.FREE for found in answers.values())
            if result in (RenewalResult.HELD, RenewalResult.GONE) or free >= self._quorum.majority:
                slot.wake()
        for name in names:  # the waiter that watched may have acquired the name since
            if (next_waiter := self._slots.next_to_watch(name)) is not None:
                next_waiter.wake()

    async def close(self, within: float) -> None:
        """Wake all waiters and wait for the listeners to end; the nodes are closed already."""
        self._wake_all()
        for job in list(self._listeners.values()):
            await job.join(within)

    def after_fork(self) -> None:
        self._slots.forget_all()
        self._reset()

    def _wake_all(self) -> None:
        for slot in self._slots:
            slot.wake()

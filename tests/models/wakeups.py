"""Hand-overs under loss: a lock is handed over while messages get lost, and no waiter may wait for ever.

Clients take one lock in turn, again and again, and never give up. Half of all messages that tell a waiter of its turn
are lost, or all of them; what wakes it then is the renewal of its place. For each hand-over it is looked at how long
the name was free although there was a waiter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from leasehold._model import DRIFT
from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.stores.etcd.renewing import GRACE
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.clients import LEASE
from models.history import quiet
from models.net import Link
from models.running import in_processes
from models.system import GOOD
from models.systems import SYSTEMS

CLIENTS = 4
ROUNDS = 50
WORK = 0.05

BOUND = LEASE / 3 * (1 + DRIFT) + 0.05
"""Seconds for which a free name may stand idle beside a waiter: its place is renewed by then, and 50 ms."""

GRACES: Mapping[str, float] = {"etcd": GRACE}
"""Seconds that a store waits, in addition, for a message that it should have received."""

SHARES: Mapping[str, int] = {"redis": 35, "postgres": 25, "etcd": 20, "sentinel": 10, "cluster": 10}
"""Hand-overs of each system in a hundred: those whose messages can be lost."""

STUCK = 1000.0
"""Seconds of simulated time after which a waiter is stuck."""


@dataclass
class Wakeups:
    """What came of many hand-overs.

    Attributes:
        handed: how many there were to a waiter.
        stuck: histories in which a waiter waited for ever.
        longest: seconds for which the name stood idle beside a waiter, at most, less what the store waits by itself.
        sent: messages, watched deletions among them.
        lost: those of them that were lost.

    """

    handed: int = 0
    stuck: int = 0
    longest: float = 0.0
    sent: int = 0
    lost: int = 0

    def join(self, other: Wakeups) -> None:
        """Count those of another."""
        self.handed += other.handed
        self.stuck += other.stuck
        self.longest = max(self.longest, other.longest)
        self.sent += other.sent
        self.lost += other.lost


class Handing:
    """One history, of one lock that goes from hand to hand; ``loss`` is the chance that a message is lost."""

    def __init__(self, seed: int, system: str, loss: float, *, fair: bool) -> None:
        self._harness = SimulatedHarness(seed)
        self._system = system
        self._loss = loss
        self._fair = fair
        self._waiting: set[int] = set()
        self._freed: float | None = None  # since when it is free although there is a waiter
        self._found = Wakeups()

    def play(self) -> Wakeups:
        """Play it to its end and return what came of it."""
        with quiet():
            self._harness.run(self._all)
        return self._found

    async def _all(self, _: Harness) -> None:
        servers = SYSTEMS[self._system](self._harness, 1.0, GOOD)
        machines = [self._harness.machine(f"c{number}") for number in range(CLIENTS)]
        for host in servers.hosts:
            for machine in machines:
                host.links[machine.machine.name] = Link(deaf=self._loss)
        jobs = [
            machine.spawn(partial(self._take_turns, number, machine, machine.client(servers.opener)))
            for number, machine in enumerate(machines)
        ]
        for job in jobs:
            if not await job.join(STUCK):
                self._found.stuck += 1
                return
            if (error := job.exception()) is not None:
                raise error
        self._found.sent = sum(host.counts.messages for host in servers.hosts)
        self._found.lost = sum(host.counts.lost_messages for host in servers.hosts)

    async def _take_turns(self, number: int, machine: SimulatedMachine, client: AsyncClient) -> None:
        lock = client.lock("a", lease=LEASE, fair=self._fair)
        for _ in range(ROUNDS):
            self._waiting.add(number)
            try:
                hold = await lock.acquire()
            except (StoreUnavailable, LeaseLost):
                continue
            assert hold is not None
            self._waiting.discard(number)
            self._handed()
            await machine.sleep(self._harness.scheduler.random.uniform(0.0, WORK))
            self._freed = self._harness.scheduler.time if self._waiting else None
            await hold.release()

    def _handed(self) -> None:
        """Measure for how long it has been free until now."""
        if self._freed is not None:
            idle = self._harness.scheduler.time - self._freed - GRACES.get(self._system, 0.0)
            self._found.handed += 1
            self._found.longest = max(self._found.longest, idle)
        self._freed = None


def hand_over_many(first: int, handovers: int, loss: float, jobs: int) -> Wakeups:
    """Let locks go on until there were so many hand-overs, half of them of fair locks."""
    found = Wakeups()
    each = CLIENTS * ROUNDS * 0.9  # not all of them are to a waiter
    pieces = list[tuple[int, str, float]]()
    for system, share in SHARES.items():
        count = int(handovers * share / 100 / each) + 1
        pieces += [(first + len(pieces) + number, system, loss) for number in range(count)]
    for part in in_processes(_piece, pieces, jobs):
        found.join(part)
    return found


def _piece(piece: tuple[int, str, float]) -> Wakeups:
    seed, system, loss = piece
    return Handing(seed, system, loss, fair=seed % 2 == 0).play()

"""One seed, one history: clients of the shipped Redis store at work on the model, while things go wrong.

Theory of operation
-------------------
The seed draws how many clients there are and how their clocks run, what they lock, which kinds of fault this history
has (few kinds at a time show more than all at once), and when each strikes. Everything else follows from it, so the
same seed gives the same history, byte for byte.

There are two kinds of history. In one, all assumptions hold: the server keeps what it has said, and clocks run at
nearly the same rate; then every promise must be kept. In the other the server forgets, or its clock is set; then two
may believe that they hold, but a guarded resource must still never see an older holder's write after a newer one's.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from leasehold.stores.base import Opener
from leasehold.testing.history import Bounds, History, Promise, Stall, Verdict, check
from leasehold.testing.history.journal import Journal, Record, assemble
from leasehold.testing.models.faults import FORGETTING, KINDS, Fault, Kind
from leasehold.testing.models.redis import Rewrite
from leasehold.testing.models.redis_server import Counts, Link, RedisServerModel
from leasehold.testing.models.redis_wire import SimulatedRedis
from leasehold.testing.worlds import Job, SimulatedMachine, SimulatedWorld, World
from leasehold.verify.resource import Values
from leasehold.verify.workload import Load, Target, Worker, note_queueing

LEASE = 2.0
LENGTH = 6.0
"""Seconds of simulated time in which clients begin something new."""

PATIENCE = 3.0
ENDS_WITHIN = 60.0
"""Seconds after that in which all must have ended; who has not waits for ever."""

RATE = 0.0049
"""How far a clock's rate may be from true: two clocks differ by less than the library allows for."""

RECOVERS = 1.5
"""Seconds in which a client that was cut off asks again."""

WOKEN = LEASE / 3 + 0.3
"""Seconds in which a waiter has a name that became free, whatever messages are lost: its place is renewed by then."""

TOLD = 0.01

LATENCIES = ((0.0001, 0.001), (0.0001, 0.001), (0.001, 0.05), (0.001, 0.4))
"""Seconds that a message takes, at least and at most: in one data centre, and far away."""

ROUND_TRIPS = 2
"""How many of them it may take, beside, until a waiter knows: the renewal, and a claim."""

FENCED = (Promise.FENCED, Promise.TOKENS, Promise.TOLD)
"""What holds even if the server forgets."""


class Assumptions(enum.Enum):
    """Whether the server keeps its word."""

    KEPT = "kept"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Spoilt:
    """How the lock is broken on purpose: the text of a script, or the store."""

    rewrite: Rewrite | None = None
    wrap: Callable[[Opener], Opener] = lambda opener: opener


GOOD = Spoilt()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    assumptions: Assumptions
    history: History
    verdict: Verdict
    faults: tuple[Fault, ...]
    counts: Counts
    steps: int
    trace: str

    @property
    def ok(self) -> bool:
        """Whether every promise that can be kept was kept."""
        return self.verdict.ok

    def report(self) -> str:
        """Return the verdict, the faults, and how to see it again."""
        again = f"python -m leasehold.testing.models --first {self.seed} --histories 1 --trace"
        faults = "\n".join(f"    {fault}" for fault in self.faults)
        return f"seed {self.seed}, assumptions {self.assumptions.value}: {self.verdict.report()}\n{faults}\n{again}"


class TrueJournal(Journal):
    """A journal in true time: what a client's own clock says is converted."""

    def __init__(self, who: str, world: SimulatedWorld, machine: SimulatedMachine, put: Callable[[Record], None]):
        super().__init__(who, lambda: world.scheduler.time, put)
        self._machine = machine.machine

    def checked(self, n: int, at: float, deadline: float) -> None:
        """Write down a check, which was made in true time."""
        super().checked(n, at, self._true(deadline))

    def told(self, n: int, deadline: float) -> None:
        """Write down a loss."""
        super().told(n, self._true(deadline))

    def _true(self, reading: float) -> float:
        return (reading - self._machine.offset) / self._machine.rate


class Party:
    """The clients of one history, and what happens to them."""

    def __init__(self, world: SimulatedWorld, seed: int, spoilt: Spoilt) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.assumptions = Assumptions.BROKEN if self.chance.random() < 0.25 else Assumptions.KEPT
        self.server = RedisServerModel(
            world.scheduler, rate=self.chance.uniform(1 - RATE, 1 + RATE), rewrite=spoilt.rewrite
        )
        self.redis = SimulatedRedis(self.server)
        self.latency = 0.0  # the longest of all clients
        self.machines: list[SimulatedMachine] = []
        self.faults: list[Fault] = []
        self.deaths: dict[str, float] = {}
        self.records: list[Record] = []
        self.values = Values(self.now)
        self._opener = spoilt.wrap(self.redis)
        self._jobs: list[tuple[SimulatedMachine, Job[None]]] = []
        self._choice = self._chosen()

    def now(self) -> float:
        """Return the true time."""
        return self.world.scheduler.time

    async def live(self) -> None:
        """Let all work until the end, and wait until the last has ended.

        Raises:
            TimeoutError: somebody waits for ever.

        """
        for _ in range(self.chance.randint(2, 5)):
            self.join()
        self.world.spawn(self._disturb)
        await self.world.sleep(LENGTH)
        until = self.now() + ENDS_WITHIN
        for machine, job in self._jobs:
            while not job.done() and not machine.machine.killed:
                if self.now() > until:
                    raise TimeoutError(f"a worker of {machine.machine.name} waits for ever")
                await job.join(1.0)
            if job.done() and (error := job.exception()) is not None:
                raise error

    def join(self) -> None:
        """Let one more client begin."""
        name = f"c{len(self.machines)}"
        machine = self.world.machine(name, rate=self.chance.uniform(1 - RATE, 1 + RATE))
        self.machines.append(machine)
        latency = self.chance.choice(LATENCIES)
        self.redis.links[name] = Link(latency)
        self.latency = max(self.latency, latency[1])
        client = machine.client(self._opener, observer=note_queueing, response_timeout=1.0)
        for number in range(self.chance.randint(1, 2)):
            journal = TrueJournal(f"{name}.{number}", self.world, machine, self.records.append)
            luck = random.Random(self.chance.getrandbits(32))
            load = Load(lease=LEASE, names=1, work=0.4, patience=PATIENCE)
            worker = Worker(client, load, journal, self._write, machine.sleep, self.now, luck)
            worker.keep(self._wanted)
            job = machine.spawn(partial(worker.run, self._over))
            self._jobs.append((machine, job))

    def history(self) -> History:
        """Put together what was written down."""
        stalls = [Stall(f.who, f.begin, f.end) for f in self.faults if f.kind is Kind.STALL]
        outages = [
            Stall(machine.machine.name, fault.begin, fault.end + RECOVERS)
            for fault in self.faults
            for machine in self.machines
            if fault.kind.cuts and fault.who in (machine.machine.name, self.server.machine.name)
        ]
        # A client also ends its connection by itself, when an answer is late: then nobody hears for it, either.
        outages += [Stall(who, when, when + RECOVERS) for who, when in self.server.breaks]
        return assemble(self.records, deaths=self.deaths, stalls=stalls, outages=outages, writes=self.values.writes)

    def verdict(self) -> Verdict:
        """Check the history."""
        if self.assumptions is Assumptions.KEPT:
            return check(self.history(), Bounds(told=TOLD, woken=WOKEN + 2 * ROUND_TRIPS * self.latency))
        loose = check(self.history(), Bounds(told=TOLD, linearizable=False, tries=False, turns=False))
        kept = tuple(violation for violation in loose.violations if violation.promise in FENCED)
        return Verdict(kept, loose.checked, loose.fenced_off)

    def _over(self) -> bool:
        return self.now() >= LENGTH

    def _wanted(self, target: Target) -> bool:
        return target.lock.name.partition("-")[0] in self._choice

    def _chosen(self) -> set[str]:
        kinds = ("lock", "fixed", "fair", "read", "permits")
        return set(self.chance.sample(kinds, self.chance.randint(1, 3)))

    def _write(self, who: str, name: str, token: int) -> bool:
        """Let a write be under way for a while: some arrive when the hold is long over."""
        delay = 0.0 if self.chance.random() < 0.7 else self.chance.uniform(0.0, 2 * LEASE)
        self.world.scheduler.at(self.now() + delay, self.server.machine, lambda: self._arrive(who, name, token))
        return True

    def _arrive(self, who: str, name: str, token: int) -> None:
        self.values.write(who, name, token)

    async def _disturb(self) -> None:
        pool = list(KINDS) if self.assumptions is Assumptions.BROKEN else [k for k in KINDS if k not in FORGETTING]
        kinds = self.chance.sample(pool, self.chance.randint(0, 4))
        if self.assumptions is Assumptions.BROKEN:
            kinds.append(self.chance.choice(FORGETTING))
        for _ in range(self.chance.randint(1, 6) if kinds else 0):
            await self.world.sleep(self.chance.uniform(0.0, LENGTH / 3))
            if self.now() > LENGTH:
                return
            kind = self.chance.choice(kinds)
            self.world.scheduler.note("fault", kind.value)
            KINDS[kind](self)


def run(seed: int, spoilt: Spoilt = GOOD) -> Outcome:
    """Run the history of a seed and check it."""
    world = SimulatedWorld(seed)
    parties: list[Party] = []

    async def body(_: World) -> None:
        parties.append(Party(world, seed, spoilt))
        await parties[0].live()

    with _quiet():
        world.run(body)
    party = parties[0]
    scheduler = world.scheduler
    return Outcome(
        seed,
        party.assumptions,
        party.history(),
        party.verdict(),
        tuple(party.faults),
        party.server.counts,
        len(scheduler.trace),
        "\n".join([world.trace(), *map(repr, party.records)]),
    )


@contextmanager
def _quiet() -> Generator[None]:
    """Let the library not write to its log what happens in thousands of histories: it is meant to go wrong."""
    logger = logging.getLogger("leasehold")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before

"""One scenario, one history: clients of a shipped store at work on a model of its servers, while things go wrong.

Theory of operation
-------------------
The scenario says what happens; delays follow from its seed. So the same seed gives the same history, byte for byte.

There are two kinds of history. In one, all assumptions hold: the servers keep what they have said, and clocks run at
nearly the same rate; then every promise must be kept. In the other the servers forget, or a clock is set; then two
may believe that they hold, but a guarded resource must still never see an older holder's write after a newer one's.
"""

from __future__ import annotations

import gc
import logging
import math
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from leasehold_lab.history import Bounds, History, Mode, Stall, Verdict, check
from leasehold_lab.history.journal import Journal, Record, assemble
from leasehold_lab.history.operations import FOREVER
from leasehold_lab.runtimes.harnesses import Harness, Job, SimulatedHarness, SimulatedMachine
from leasehold_lab.verify.clients.resource import Values
from leasehold_lab.verify.clients.workload import Load, Worker, note_queueing, targets
from models.faults import Fault, strike
from models.scenario import SIZE, Actor, Assumptions, Kind, Scenario, Size, Strike, draw
from models.system import GOOD, Spoilt, System
from models.systems import SYSTEMS

LEASE = 2.0
PATIENCE = 3.0
WORK = 0.4
LONG = 0.2
"""The part of the holds that last long, and are renewed."""

LONG_IF_DOUBTFUL = 0.6
"""The same where servers may lose a hold, or say only that they renew it: one that was given back shows nothing."""

LONGEST = 2.5
"""Leases that a hold lasts at most: one that ends within its first shows nothing of its renewals."""

ENDS_WITHIN = 90.0
"""Seconds of simulated time in which all must have ended; who has not waits for ever."""

ANSWERS_WITHIN = 1.0
"""Seconds that a client waits for an answer."""

PAUSES = 1.0
"""Seconds between two attempts to reach servers that do not answer, at most; before that, twice what has passed."""

WOKEN = LEASE / 3 + 0.3
"""Seconds in which a waiter has a name that became free, whatever messages are lost: its place is renewed by then."""

KEEPS_PLACE = LEASE / 2
"""Seconds for which a waiter may be away and keep its place: it is renewed at each third of a lease."""

TOLD = 0.01

KEEPS_HOLD = LEASE
"""Seconds of renewals, two of which may fail: who loses a hold then lost it by the store's fault, or the watchdog's."""

GIVES_UP = LEASE
"""Seconds after which a client has given up what nobody can release: a renewal is answered, and the next one is due."""

LEFT_BEHIND = 4 * LEASE
"""Seconds after the last has ended, until nothing is left: what was dropped, what the dead had, clocks set back."""

AT_ONCE = 0.001
"""Seconds that lie between what happens at one moment, where it counts which was first."""

NEAR = LEASE / 12
"""Seconds that a message takes at most where that is known: a renewal that takes longer may fail, again and again."""

ROUND_TRIPS = 2
"""How many of them it may take, beside, until a waiter knows: the renewal, and a claim."""

TO_CONNECT = 4
"""Round trips to connect, to subscribe, and to claim again."""


class SeenByServers(AssertionError):
    """What no client notices for certain, and must not happen all the same."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one scenario."""

    scenario: Scenario
    history: History
    verdict: Verdict
    faults: tuple[Fault, ...]
    error: BaseException | None
    trace: Callable[[], str]

    @property
    def ok(self) -> bool:
        """Whether every promise that can be kept was kept."""
        return self.error is None and self.verdict.ok

    @property
    def broken(self) -> str:
        """Name the gravest promise that was broken; empty if none was."""
        if self.error is not None:
            return f"{type(self.error).__name__}"
        return "" if self.verdict.ok else self.verdict.violations[0].promise.name


class TrueJournal(Journal):
    """A journal in true time: what a client's own clock says is converted.

    Of a hold that was renewed it says, too, for how long what its client sent last is believed in.
    """

    def __init__(self, who: str, harness: SimulatedHarness, machine: SimulatedMachine, put: Callable[[Record], None]):
        super().__init__(who, lambda: harness.scheduler.time, put)
        self._machine = machine.machine
        self._first = dict[int, float]()  # deadlines of grants, which the store may have sent by itself

    def granted(self, n: int, token: int, since: float | None = None, deadline: float = FOREVER) -> None:
        """Write down a grant."""
        self._first[n] = deadline
        super().granted(n, token, since if since is None else self._true(since), self._true(deadline))

    def checked(self, n: int, at: float, deadline: float, believed: float | None = None) -> None:
        """Write down a check, which was made in true time."""
        until = self._true(deadline)
        super().checked(n, at, until, until - self._machine.spoke if deadline > self._first[n] else None)

    def notified(self, n: int, deadline: float) -> None:
        """Write down a loss."""
        super().notified(n, self._true(deadline))

    def _true(self, reading: float) -> float:
        return (reading - self._machine.offset) / self._machine.rate


class Hand(Worker):
    """A worker that does what its seeds say, each operation from a seed of its own."""

    async def work(self, seeds: tuple[int, ...]) -> None:
        """Do one operation for each seed."""
        for seed in seeds:
            if self.closed:
                return
            self._random.seed(seed)
            if self._random.random() < 0.5:
                await self._sleep(self._random.uniform(0.0, WORK))
            await self._once(self._random.choice(self._targets))


class Party:
    """The clients of one history, and what happens to them."""

    def __init__(self, harness: SimulatedHarness, scenario: Scenario, spoilt: Spoilt) -> None:
        self.harness = harness
        self.scenario = scenario
        self.chance = random.Random(scenario.seed)
        self.system: System = SYSTEMS[scenario.system](harness, scenario.server_rate, spoilt)
        self.machines: list[SimulatedMachine] = []
        self.faults: list[Fault] = []
        self.deaths: dict[str, tuple[float, float]] = {}
        self.closed: dict[str, float] = {}
        self.records: list[Record] = []
        self.values = Values(self.now)
        self._latency = {actor.latency[1] for actor in (*scenario.actors, *scenario.next_waiters)}
        self._opener = spoilt.wrap(self.system.opener)
        self._next_waiters = iter(scenario.next_waiters)
        self._over = False
        self._jobs: list[tuple[SimulatedMachine, Job[None]]] = []

    def now(self) -> float:
        """Return the true time."""
        return self.harness.scheduler.time

    async def live(self) -> None:
        """Let all work until the last has ended.

        Raises:
            TimeoutError: somebody waits for ever.

        """
        for one in self.scenario.strikes:
            self.system.foresee(one)
        for actor in self.scenario.actors:
            self.join(actor)
        for one in self.scenario.strikes:
            self.harness.scheduler.at(one.at, self.harness.fate, partial(self._strike, one))
        for machine, job in self._jobs:  # next waiters are added to it meanwhile
            while not job.done() and not machine.machine.killed:
                if self.now() > ENDS_WITHIN:
                    raise TimeoutError(f"a worker of {machine.machine.name} waits for ever")
                await job.join(1.0)
            if job.done() and (error := job.exception()) is not None:
                raise error
        self._over = True
        if self.scenario.passed:
            await self._look_for_leftovers()

    def join(self, actor: Actor) -> None:
        """Let one more client begin."""
        name = f"c{len(self.machines)}"
        machine = self.harness.machine(name, offset=actor.offset, rate=actor.rate)
        self.machines.append(machine)
        for host in self.system.hosts:
            host.link(name).latency = actor.latency
        client = machine.client(self._opener, observer=note_queueing, response_timeout=ANSWERS_WITHIN)
        doubtful = self.scenario.assumptions is Assumptions.BROKEN or self.scenario.hits(Kind.REPLACED)
        long = LONG_IF_DOUBTFUL if doubtful else LONG
        load = self._load(long)
        for number, seeds in enumerate(actor.tasks):
            journal = TrueJournal(f"{name}.{number}", self.harness, machine, self.records.append)
            chance, kinds = random.Random(0), self.scenario.what
            hand = Hand(client, load, journal, self._write, machine.sleep, self.now, chance, kinds)
            self._jobs.append((machine, machine.spawn(partial(hand.work, seeds))))

    def _load(self, long: float = LONG) -> Load:
        passed = self.scenario.passed
        tardy = self.system.tardy
        return Load(
            lease=LEASE, names=1, work=WORK, patience=PATIENCE, tardy=tardy, long=long, longest=LONGEST, passed=passed
        )

    async def _look_for_leftovers(self) -> None:
        """See that all names are free some leases after the last has ended: of what was dropped, too.

        Raises:
            TimeoutError: one is not.

        """
        await self.harness.sleep(LEFT_BEHIND + self.system.tardy + self.system.late)
        machine = self.harness.machine("last")
        client = machine.client(self._opener, response_timeout=ANSWERS_WITHIN)
        wanted = targets(client, self._load(), self.scenario.what)
        locks = {target.lock.name: target.lock for target in wanted if target.mode is Mode.EXCLUSIVE}

        async def look() -> None:
            for name, lock in locks.items():
                hold = await lock.acquire(timeout=LEASE)
                if hold is None:
                    raise TimeoutError(f"{name} is never free again")
                await hold.release()

        await machine.spawn(look).result()

    def next_waiter(self) -> None:
        """Let the next client come in the place of one that was killed."""
        if (actor := next(self._next_waiters, None)) is not None:
            self.join(actor)

    def note(self, kind: Kind, who: str, seconds: float) -> None:
        """Write down a fault."""
        self.faults.append(Fault(kind, who, self.now(), self.now() + seconds))

    def history(self) -> History:
        """Put together what was written down."""
        stalls = [Stall(f.who, f.begin, f.end) for f in self.faults if f.kind in (Kind.STALL, Kind.SUSPEND)]
        return assemble(
            self.records,
            deaths=self.deaths,
            stalls=stalls,
            outages=self._outages(),
            writes=self.values.writes,
            removals=self.system.removals,
        )

    def _outages(self) -> list[Stall]:
        """Return when each client could not reach the store, until it must have found back."""
        found = list[Stall]()
        for fault in self.faults:
            if fault.kind.cuts:
                until = fault.end + self._finds_back(fault.end - fault.begin)
                found += [Stall(name, fault.begin, until) for name in self._concerned(fault)]
        # A client also ends its connection by itself, when an answer is late: then nobody hears for it, either.
        breaks = [one for host in self.system.serving for one in host.breaks]
        closed = [Stall(name, at - AT_ONCE) for name, at in self.closed.items()]  # its holds are lost for this reason
        return [*found, *closed, *(Stall(who, when, when + self._finds_back(0.0)) for who, when in breaks)]

    def _concerned(self, fault: Fault) -> Iterator[str]:
        return iter([fault.who] if fault.who else [machine.machine.name for machine in self.machines])

    def _finds_back(self, away: float) -> float:
        """Return the seconds that a client needs that was cut off for so long: its pause, and a connection."""
        return min(PAUSES, 2 * away) + self.system.reconnects + TO_CONNECT * 2 * max(self._latency)

    def verdict(self, history: History) -> Verdict:
        """Check what came of it."""
        system = self.system
        far = max(self._latency)
        if self.scenario.assumptions is Assumptions.KEPT:
            woken = WOKEN + system.late + 2 * ROUND_TRIPS * far
            passed_over = 2 * far if system.passes_over else None
            bounds = Bounds(
                TOLD,
                woken,
                system.linearizable,
                system.tries,
                keeps_entry=KEEPS_PLACE,
                passed_over=passed_over,
                keeps_hold=KEEPS_HOLD if far < NEAR and not system.holds_up else math.inf,
                gives_up=GIVES_UP + 2 * ROUND_TRIPS * far,
            )
            return check(history, bounds)
        noticed = WOKEN + 2 * ROUND_TRIPS * far
        loose = check(history, Bounds(TOLD, linearizable=False, tries=False, fifo=False, noticed=noticed))
        kept = tuple(violation for violation in loose.violations if violation.promise in system.promises)
        return Verdict(kept, loose.checked, loose.fenced_off)

    def _strike(self, one: Strike) -> None:
        if self._over:  # all that is left is to close the clients
            return
        self.harness.scheduler.note("fault", one.kind.value)
        strike(self, one)

    def _write(self, who: str, name: str, token: int) -> bool:
        """Let a write be under way for a while: some arrive when the hold is long over."""
        delay = 0.0 if self.chance.random() < 0.7 else self.chance.uniform(0.0, 2 * LEASE)

        def arrive() -> None:
            self.values.write(who, name, token)

        self.harness.scheduler.at(self.now() + delay, self.harness.fate, arrive)
        return True


def play(scenario: Scenario, spoilt: Spoilt = GOOD) -> Outcome:
    """Let a scenario happen, and check what came of it."""
    harness = SimulatedHarness(scenario.seed)
    parties: list[Party] = []
    error: BaseException | None = None

    async def body(_: Harness) -> None:
        parties.append(Party(harness, scenario, spoilt))
        await parties[0].live()

    with quiet(), uncollected():
        try:
            harness.run(body)
        except Exception as failure:
            if not parties:
                raise
            error = failure
    party = parties[0]
    if error is None and scenario.assumptions is Assumptions.KEPT and (seen := party.system.seen()):
        error = SeenByServers(seen)
    history = party.history()
    return Outcome(
        scenario,
        history,
        party.verdict(history),
        tuple(party.faults),
        error,
        lambda: "\n".join([harness.trace(), *map(repr, party.records)]),
    )


def run(
    seed: int, system: str = "redis", spoilt: Spoilt = GOOD, size: Size = SIZE, *, passed: bool | None = None
) -> Outcome:
    """Draw the scenario of a seed and play it; ``passed`` as for `draw`."""
    return play(draw(seed, system, SYSTEMS[system].menu, size, passed=passed), spoilt)


@contextmanager
def uncollected() -> Generator[None]:
    """Let no garbage be collected meanwhile: what was dropped must be given up all the same."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def quiet() -> Generator[None]:
    """Let the library not write to its log what happens in thousands of histories: it is meant to go wrong."""
    logger = logging.getLogger("leasehold")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before

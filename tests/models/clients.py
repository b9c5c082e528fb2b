"""The clients of one simulated history: their workload, their faults, and the bounds that their history must keep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold_lab.history import Bounds, History, Mode, Stall, Verdict, check
from leasehold_lab.history.journal import Journal, Record, assemble
from leasehold_lab.history.operations import FOREVER
from leasehold_lab.runtimes.harnesses import Job, SimulatedHarness, SimulatedMachine
from leasehold_lab.verify.clients.resource import Values
from leasehold_lab.verify.clients.workload import Load, Worker, note_queueing, targets
from models.faults import Fault, strike
from models.scenario import Actor, Assumptions, Kind, Scenario, Strike
from models.system import Spoilt, System
from models.systems import SYSTEMS

LEASE = 2.0
PATIENCE = 3.0
WORK = 0.4
LONG = 0.2
"""The fraction of holds that last long, and are renewed."""

LONG_IF_DOUBTFUL = 0.6
"""The same where servers may lose a hold, or only pretend to renew it: a short hold would not show it."""

LONGEST = 2.5
"""The most leases that a hold lasts: one that ends within its first shows nothing about renewals."""

ENDS_WITHIN = 200.0
"""Seconds of virtual time within which all workers must end, with timeouts or without; one that has not hangs."""

ANSWERS_WITHIN = 1.0
"""Seconds that a client waits for an answer."""

PAUSES = 1.0
"""The longest pause, in seconds, between two attempts to connect; before that, a pause is twice the time passed."""

WAKE_UP = LEASE / 3 + 0.3
"""Seconds within which a waiter acquires a free name, whatever messages are lost: by then its entry is renewed."""

KEEPS_ENTRY = LEASE / 2
"""Seconds for which a waiter may be cut off and keep its queue entry, which is renewed at each third of a lease."""

NOTIFIED = 0.01
"""Seconds after the deadline within which a holder must be notified."""

KEEPS_HOLD = LEASE
"""Seconds of renewals, two of which may fail: a loss after them is a mistake of the store or of the watchdog."""

GIVES_UP = LEASE
"""Seconds after which a client has given up a dropped hold: a renewal is answered, and the next one is due."""

LEFT_BEHIND = 4 * LEASE
"""Seconds after the last worker until all names are free: dropped holds, dead clients, clocks set back a little."""

SET_BACK = 1.25 * LEASE
"""Seconds for which a dead holder's lock is in the way of whoever asks first after a clock was set back by far."""

GOES_ON = LEASE / 4
"""Seconds for which a client that goes on holds something, and those until it does so again."""

AT_ONCE = 0.001
"""Seconds between two events of one moment whose order matters."""

NEAR = LEASE / 12
"""The most seconds of a message for which renewals must succeed: slower renewals may fail again and again."""

ROUND_TRIPS = 2
"""Round trips that a waiter needs in addition: the renewal and the acquire."""

TO_CONNECT = 4
"""Round trips to connect, to subscribe, and to retry."""


class TrueJournal(Journal):
    """A journal in true time: readings of a client's own clock are converted.

    For a renewed hold it also records the time from the last request of its client to its deadline.
    """

    def __init__(self, who: str, harness: SimulatedHarness, machine: SimulatedMachine, put: Callable[[Record], None]):
        super().__init__(who, lambda: harness.scheduler.time, put)
        self._machine = machine.machine
        self._first = dict[int, float]()  # deadlines of grants, which the store may have sent by itself

    def granted(self, n: int, token: int, since: float | None = None, deadline: float = FOREVER) -> None:
        """Record a grant."""
        self._first[n] = deadline
        super().granted(n, token, since if since is None else self._true(since), self._true(deadline))

    def checked(self, n: int, at: float, deadline: float, believed: float | None = None) -> None:
        """Record a check, which was made in true time."""
        until = self._true(deadline)
        super().checked(n, at, until, until - self._machine.spoke if deadline > self._first[n] else None)

    def notified(self, n: int, deadline: float) -> None:
        """Record a loss notice."""
        super().notified(n, self._true(deadline))

    def _true(self, reading: float) -> float:
        return (reading - self._machine.offset) / self._machine.rate


class SeededWorker(Worker):
    """A worker that draws each operation from its own seed."""

    async def work(self, seeds: tuple[int, ...]) -> None:
        """Do one operation for each seed."""
        for seed in seeds:
            if self.closed:
                return
            self._random.seed(seed)
            if self._random.random() < 0.5:
                await self._sleep(self._random.uniform(0.0, WORK))
            await self._once(self._random.choice(self._targets))


class ClientGroup:
    """The clients of one history, and the faults that are injected into them."""

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
        """Let all clients work until the last worker has ended.

        Raises:
            TimeoutError: a worker waits for ever.

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
            await self._check_names_are_free()

    def join(self, actor: Actor) -> None:
        """Start one more client."""
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
            worker = SeededWorker(client, load, journal, self._write, machine.sleep, self.now, chance, kinds)
            self._jobs.append((machine, machine.spawn(partial(worker.work, seeds))))

    def _load(self, long: float = LONG) -> Load:
        passed = self.scenario.passed
        expiry_delay = self.system.expiry_delay
        return Load(
            lease=LEASE,
            names=1,
            work=WORK,
            patience=None if self.scenario.patient else PATIENCE,
            expiry_delay=expiry_delay,
            long=long,
            longest=LONGEST,
            passed=passed,
        )

    async def _check_names_are_free(self) -> None:
        """Check that all names are free some leases after the last worker has ended, dropped holds included.

        Meanwhile the clients go on with other names, which may keep alive what they left behind.

        Raises:
            TimeoutError: a name is not free.

        """
        living = [one for one in self.machines if not one.machine.killed and one.machine.name not in self.closed]
        looked = list[bool]()
        going_on = [one.spawn(partial(self._go_on, one, looked)) for one in living]
        await self.harness.sleep(LEFT_BEHIND + self.system.expiry_delay + self.system.late)
        machine = self.harness.machine("last")
        client = machine.client(self._opener, response_timeout=ANSWERS_WITHIN)
        wanted = targets(client, self._load(), self.scenario.what)
        locks = {target.lock.name: target.lock for target in wanted if target.mode is Mode.EXCLUSIVE}

        async def look() -> None:
            for name, lock in locks.items():
                hold = await lock.acquire(timeout=SET_BACK if self.scenario.hits(Kind.BACK) else LEASE)
                if hold is None:
                    raise TimeoutError(f"{name} is never free again")
                await hold.release()

        await machine.spawn(look).result()
        looked.append(True)
        for job in going_on:
            await job.result()

    async def _go_on(self, machine: SimulatedMachine, looked: list[bool]) -> None:
        """Hold a name of its own again and again, too shortly for a renewal, until all others were looked at."""
        (client,) = machine.clients()
        lock = client.lock(machine.machine.name, lease=LEASE)
        while not looked:
            with suppress(StoreUnavailable, LeaseLost):
                async with lock:
                    await machine.sleep(GOES_ON)
            await machine.sleep(GOES_ON)

    def next_waiter(self) -> None:
        """Start the replacement of a killed client."""
        if (actor := next(self._next_waiters, None)) is not None:
            self.join(actor)

    def note(self, kind: Kind, who: str, seconds: float) -> None:
        """Record a fault."""
        self.faults.append(Fault(kind, who, self.now(), self.now() + seconds))

    def history(self) -> History:
        """Build the history from the records."""
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
        """Return when each client could not reach the store, until it must have reconnected."""
        found = list[Stall]()
        for fault in self.faults:
            if fault.kind.cuts:
                until = fault.end + self._reconnects_within(fault.end - fault.begin)
                found += [Stall(name, fault.begin, until) for name in self._concerned(fault)]
        # A client also closes its connection itself when an answer is late: then it receives no messages, either.
        breaks = [one for host in self.system.serving for one in host.breaks]
        closed = [Stall(name, at - AT_ONCE) for name, at in self.closed.items()]  # its holds are lost for this reason
        return [*found, *closed, *(Stall(who, when, when + self._reconnects_within(0.0)) for who, when in breaks)]

    def _concerned(self, fault: Fault) -> Iterator[str]:
        return iter([fault.who] if fault.who else [machine.machine.name for machine in self.machines])

    def _reconnects_within(self, away: float) -> float:
        """Return the seconds until a client that was cut off for ``away`` seconds is back: a pause and a connection."""
        return min(PAUSES, 2 * away) + self.system.reconnects + TO_CONNECT * 2 * max(self._latency)

    def verdict(self, history: History) -> Verdict:
        """Check the history."""
        system = self.system
        far = max(self._latency)
        if self.scenario.assumptions is Assumptions.KEPT:
            wake_up = WAKE_UP + system.late + 2 * ROUND_TRIPS * far
            passed_over = 2 * far if system.passes_over else None
            bounds = Bounds(
                NOTIFIED,
                wake_up,
                system.linearizable,
                system.tries,
                keeps_entry=KEEPS_ENTRY,
                passed_over=passed_over,
                keeps_hold=KEEPS_HOLD if far < NEAR and not system.holds_up else math.inf,
                gives_up=GIVES_UP + 2 * ROUND_TRIPS * far,
            )
            return check(history, bounds)
        noticed = WAKE_UP + 2 * ROUND_TRIPS * far
        loose = check(history, Bounds(NOTIFIED, linearizable=False, tries=False, fifo=False, noticed=noticed))
        kept = tuple(violation for violation in loose.violations if violation.promise in system.promises)
        return Verdict(kept, loose.checked, loose.fenced_off)

    def _strike(self, one: Strike) -> None:
        if self._over:  # only the clients have to be closed now
            return
        self.harness.scheduler.note("fault", one.kind.value)
        strike(self, one)

    def _write(self, who: str, name: str, token: int) -> bool:
        """Delay a write: some arrive long after the end of the hold."""
        delay = 0.0 if self.chance.random() < 0.7 else self.chance.uniform(0.0, 2 * LEASE)

        def arrive() -> None:
            self.values.write(who, name, token)

        self.harness.scheduler.at(self.now() + delay, self.harness.fate, arrive)
        return True

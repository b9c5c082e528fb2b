"""Five workers on one name in a hostile environment, thousands of seeds: S1, tokens, liveness, and nothing is left.

Every seed is a history of its own: random delays, clocks that drift, messages lost, doubled and late, workers stopped
and killed. To see one that failed: ``SimulatedHarness(seed)`` with the same scenario, and ``harness.trace()``.
"""

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from leasehold import AsyncClient, AsyncHold, LeaseLost, StoreUnavailable
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, sometimes
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from support.fate import all_end, disturb

LEASE = 3.0
WORKERS = 5
ROUNDS = 4
LATENCY = (0.0001, 0.02)

RATES = {
    Kind.REFUSE: 0.02,
    Kind.DROP_REQUEST: 0.03,
    Kind.DROP_REPLY: 0.03,
    Kind.DUPLICATE: 0.02,
    Kind.DELAY_REQUEST: 0.03,
    Kind.DELAY_REPLY: 0.03,
    Kind.LATE: 0.02,
    Kind.DEAF: 0.2,
}


@dataclass
class Record:
    """What the workers did, in true time, for the checks at the end."""

    claims: list[tuple[float, float, int]] = field(default_factory=list)  # from, until, token: of each valid claim
    waits: list[float] = field(default_factory=list)
    done: int = 0


def true_time(harness: SimulatedHarness, machine: SimulatedMachine, local: float) -> float:
    return (local - machine.machine.offset) / machine.machine.rate


class Worker:
    """Takes the lock a few times; whatever it believes about it is written down."""

    def __init__(
        self, harness: SimulatedHarness, number: int, record: Record, plan: Callable[[Call], Fault | None]
    ) -> None:
        self.harness, self.record = harness, record
        self.machine = harness.machine(f"worker-{number}")
        self.client = self.machine.client(Faulty(Memory(), plan), response_timeout=1.0)
        self.chance = random.Random(harness.scheduler.random.random())

    async def work(self, options: dict[str, object]) -> None:
        for _ in range(ROUNDS):
            await self.machine.sleep(self.chance.uniform(0.0, 2.0))
            lock = self.client.lock("a", lease=LEASE, **options)  # type: ignore[arg-type]
            asked = self.harness.scheduler.time
            with contextlib.suppress(StoreUnavailable, LeaseLost):
                hold = await lock.acquire()
                assert hold is not None
                self.record.waits.append(self.harness.scheduler.time - asked)
                await self.hold_it(hold)
        self.record.done += 1

    async def hold_it(self, hold: AsyncHold) -> None:
        """Believe in the hold, look at it every now and then, and release it."""
        claim, since = len(self.record.claims), self.harness.scheduler.time
        self.record.claims.append((since, since, hold.token))
        until = self.machine.now() + self.chance.uniform(0.0, 2 * LEASE)
        try:
            while self.machine.now() < until:
                hold.raise_if_lost()
                believed = true_time(self.harness, self.machine, self.machine.now() + hold.remaining)
                # valid from here until it is looked at again, or the deadline that is known now
                pause = self.chance.uniform(0.0, 0.2)
                now = self.harness.scheduler.time
                self.record.claims[claim] = (since, min(believed, now + pause / self.machine.machine.rate), hold.token)
                await self.machine.sleep(pause)
        finally:
            await hold.release()


def scenario(harness: SimulatedHarness, options: dict[str, object], *, hostile: bool = True) -> Record:
    record = Record()

    async def body(_: Harness) -> None:
        chance = random.Random(harness.scheduler.random.random())
        plan = sometimes(chance, RATES if hostile else {}, LEASE / 2)
        workers = [Worker(harness, number, record, plan) for number in range(WORKERS)]
        jobs = [worker.machine.spawn(lambda worker=worker: worker.work(options)) for worker in workers]
        if hostile:
            await disturb(harness, workers, chance, chance.randrange(4), LEASE, pause=3.0, kills=0.3)
        await all_end(harness, workers, jobs, LEASE)
        await nothing_is_left(harness)

    harness.run(body)
    return record


async def nothing_is_left(harness: SimulatedHarness) -> None:
    looker = harness.client(Memory())
    start = harness.scheduler.time
    hold = await looker.lock("a", lease=LEASE).acquire(timeout=10 * LEASE)
    assert hold is not None
    assert harness.scheduler.time - start <= 2 * LEASE + 1.0, "what the dead left behind ended with its lease"
    await hold.release()
    await harness.sleep(3 * LEASE)
    assert await looker.holds() == [], "nothing is left"


def check(record: Record, seed: int) -> None:
    claims = sorted(record.claims)
    for (_, until, token), (since, _, after) in itertools.pairwise(claims):
        assert until <= since + 1e-9, f"seed {seed}: token {token} is valid until {until}, {after} began at {since}"
        assert token < after, f"seed {seed}: tokens do not rise with the grants"


def run_seeds(seeds: range, options: dict[str, object]) -> None:
    for seed in seeds:
        harness = SimulatedHarness(seed, latency=LATENCY)
        try:
            record = scenario(harness, options)
        except BaseException as error:
            error.add_note(f"seed {seed}, options {options}")
            raise
        check(record, seed)


@pytest.mark.parametrize("options", [{}, {"fair": True}, {"renew": False}, {"lock_delay": 1.0}], ids=str)
@pytest.mark.parametrize("block", range(2))
def test_no_two_valid_claims_overlap_and_everyone_gets_on(options: dict[str, object], block: int) -> None:
    run_seeds(range(block * 25, block * 25 + 25), options)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"fair": True}, {"renew": False}, {"lock_delay": 1.0}], ids=str)
@pytest.mark.parametrize("block", range(10))
def test_many_more_seeds(options: dict[str, object], block: int) -> None:
    run_seeds(range(1000 + block * 500, 1000 + block * 500 + 500), options)


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_nobody_loses_anything(seed: int) -> None:
    record = scenario(SimulatedHarness(seed, latency=LATENCY), {}, hostile=False)
    check(record, seed)
    assert record.done == WORKERS
    assert len(record.claims) == WORKERS * ROUNDS


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_seed_is_the_same_history_byte_for_byte(seed: int) -> None:
    traces = []
    for _ in range(2):
        harness = SimulatedHarness(seed, latency=LATENCY)
        scenario(harness, {})
        traces.append(harness.trace().encode())
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 200


def test_another_seed_is_another_history() -> None:
    traces = set()
    for seed in range(5):
        harness = SimulatedHarness(seed, latency=LATENCY)
        scenario(harness, {})
        traces.add(harness.trace())
    assert len(traces) == 5


def test_the_check_sees_an_overlap() -> None:
    with pytest.raises(AssertionError, match="valid until"):
        check(Record(claims=[(0.0, 2.0, 1), (1.0, 3.0, 2)]), 0)
    with pytest.raises(AssertionError, match="tokens"):
        check(Record(claims=[(0.0, 1.0, 2), (1.0, 3.0, 1)]), 0)


@pytest.mark.parametrize("fault", ["a deadline that is believed for too long", "a clock that is too slow"])
def test_the_scenario_finds_a_broken_promise(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seeds fail when validity is counted wrong, or when the assumption about clocks is broken."""
    if fault.startswith("a deadline"):
        monkeypatch.setattr("leasehold._engine.lease.deadline_of", lambda since, lease: since + lease * 1.5)
    else:
        machine = SimulatedHarness.machine
        monkeypatch.setattr(SimulatedHarness, "machine", lambda self, name: machine(self, name, rate=0.5))
    with pytest.raises(AssertionError, match="valid until"):
        run_seeds(range(100), {})


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_lost_wake_ups_cost_a_third_of_the_lease_and_no_more(share: float, seed: int) -> None:
    harness = SimulatedHarness(seed)
    handed: list[tuple[float, float]] = []

    async def body(_: Harness) -> None:
        chance = random.Random(seed)
        store = Faulty(Memory(), sometimes(chance, {Kind.DEAF: share}, 0.0))
        freed = [harness.now()]

        async def work(client: AsyncClient) -> None:
            async with client.lock("a", lease=LEASE):
                handed.append((freed[0], harness.now()))
                await harness.sleep(1.0)
                freed[0] = harness.now()

        clients = [harness.client(store) for _ in range(WORKERS)]
        await harness.gather(*(work(client) for client in clients))

    harness.run(body)
    assert len(handed) == WORKERS
    longest = max(got - freed for freed, got in handed)
    assert longest <= LEASE / 3 * 1.1 + 0.1, f"seed {seed}: {longest}"
    if share == 1.0:
        assert longest > 0.1, "without messages it takes the renewal"


@pytest.mark.parametrize("seed", range(10))
def test_a_stopped_holder_is_told_before_any_call_of_its_own_succeeds(seed: int) -> None:
    harness = SimulatedHarness(seed)
    seen: list[str] = []

    async def body(_: Harness) -> None:
        machine = harness.machine("stopped")
        client = machine.client(Memory())

        async def work() -> None:
            try:
                async with client.lock("a", lease=LEASE) as hold:
                    while True:
                        hold.raise_if_lost()
                        seen.append("works")
                        await machine.sleep(0.1)
            except LeaseLost:
                seen.append("told")

        job = machine.spawn(work)
        await harness.sleep(1.0)
        machine.stall(2 * LEASE)
        count = len(seen)
        other = await harness.client(Memory()).lock("a", lease=LEASE).acquire()
        assert other is not None
        await harness.sleep(2 * LEASE)
        assert await job.join(1.0)
        assert seen[count:] == ["told"]
        other.raise_if_lost()

    harness.run(body)

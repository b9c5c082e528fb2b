"""Barriers under faults: no member passes before all have arrived, and dead members are noticed in time."""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold import AcquireTimeout, AsyncBarrier, BrokenBarrier, LeaseLost, StoreUnavailable
from leasehold.primitives.coordination.barrier_members import CHECK_EVERY
from leasehold.primitives.coordination.journal import LOST_MESSAGE
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, nth, sometimes
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.fate import all_end, disturb
from support.plugins.tiers import repetitions

LEASE = 3.0
PARTIES = 3
ROUNDS = 4
TIMEOUT = 8.0
LATENCY = (0.0001, 0.02)
RATES = {
    Kind.REFUSE: 0.01,
    Kind.DROP_REQUEST: 0.03,
    Kind.DROP_REPLY: 0.03,
    Kind.DUPLICATE: 0.03,
    Kind.DELAY_REQUEST: 0.03,
    Kind.DELAY_REPLY: 0.03,
    Kind.LATE: 0.02,
    Kind.DEAF: 0.2,
}

Plan = Callable[[Call], Fault | None]


@dataclass
class Record:
    """When each member arrived at a round and passed it, how many used `enter`, and how many got an error."""

    came: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    went: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    broken: int = 0
    inside: int = 0


class Worker:
    """Passes the barrier a few times. If it finds the barrier broken, it resets the barrier after a while."""

    def __init__(self, harness: SimulatedHarness, number: int, record: Record, plan: Plan, *, drop_dead: bool) -> None:
        self.harness, self.record, self.drop_dead = harness, record, drop_dead
        self.machine = harness.machine(f"worker-{number}")
        self.client = self.machine.client(Faulty(Memory(), plan), response_timeout=1.0)
        self.chance = random.Random(harness.scheduler.random.random())

    def barrier(self) -> AsyncBarrier:
        return self.client.barrier("a", PARTIES, lease=LEASE, timeout=TIMEOUT, drop_dead=self.drop_dead)

    async def work(self) -> None:
        met = 0
        for _ in range(4 * ROUNDS):
            await self.machine.sleep(self.chance.uniform(0.0, 1.0))
            try:
                met += await self.meet()
            except (BrokenBarrier, LeaseLost, AcquireTimeout, StoreUnavailable) as error:
                self.record.broken += 1
                if isinstance(error, BrokenBarrier):
                    await self.machine.sleep(self.chance.uniform(0.0, 1.0))
                    await self.repair()
            if met == ROUNDS:
                return

    async def meet(self) -> bool:
        meeting, came = self.barrier(), self.harness.scheduler.time
        if self.chance.random() < 0.5:
            member = await meeting._members.meet(None, stays=False)
            self.note(member.round, member.index, came)
            return True
        index = await meeting.enter()
        (member,) = meeting._inside.values()
        self.note(member.round, index, came)
        self.record.inside += 1
        await self.machine.sleep(self.chance.uniform(0.0, 1.0))
        await meeting.leave()
        return True

    def note(self, round_: int, index: int, came: float) -> None:
        self.record.came[round_].append(came)
        self.record.went[round_].append((self.harness.scheduler.time, index))

    async def repair(self) -> None:
        try:
            if await self.barrier().broken():
                await self.barrier().reset()
        except StoreUnavailable:
            pass


def scenario(
    harness: SimulatedHarness, plan: Plan, *, drop_dead: bool, workers: int = PARTIES, times: int = 0
) -> Record:
    record = Record()

    async def body(_: Harness) -> None:
        chance = random.Random(harness.scheduler.random.random())
        those = [Worker(harness, number, record, plan, drop_dead=drop_dead) for number in range(workers)]
        jobs = [worker.machine.spawn(worker.work) for worker in those]
        await disturb(harness, those, chance, times, LEASE, pause=2.0, kills=0.4)
        await all_end(harness, those, jobs, LEASE, by=2000.0)
        await harness.sleep(2 * LEASE)
        assert await harness.client(Memory()).holds() == [], "an entry outlives its member's lease"

    harness.run(body)
    return record


def check(record: Record) -> None:
    for round_, went in record.went.items():
        indexes = [index for _, index in went]
        assert len(set(indexes)) == len(indexes), f"round {round_} gave an index twice: {went}"
        assert all(0 <= index < PARTIES for index in indexes)
        first = min(when for when, _ in went)
        assert max(record.came[round_]) <= first, f"round {round_}: one passed before another arrived"


@settings(max_examples=repetitions(100, 25), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 10**6), workers=st.integers(1, 5), times=st.integers(0, 4), drop_dead=st.booleans())
def test_no_member_passes_before_all_have_arrived(seed: int, workers: int, times: int, drop_dead: bool) -> None:
    plan = sometimes(random.Random(seed), RATES, LEASE / 3)
    harness = SimulatedHarness(seed, latency=LATENCY)
    check(scenario(harness, plan, drop_dead=drop_dead, workers=workers, times=times))


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_many_more_seeds(block: int) -> None:
    for seed in range(10_000 + 200 * block, 10_000 + 200 * block + 200):
        plan = sometimes(random.Random(seed), RATES, LEASE / 3)
        harness = SimulatedHarness(seed, latency=LATENCY)
        check(scenario(harness, plan, drop_dead=seed % 2 == 0, workers=4, times=3))


@pytest.mark.parametrize("drop_dead", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_without_faults_all_members_pass_every_round(seed: int, drop_dead: bool) -> None:
    record = scenario(SimulatedHarness(seed, latency=LATENCY), lambda call: None, drop_dead=drop_dead)
    check(record)
    assert record.broken == 0
    assert [sorted(index for _, index in went) for went in record.went.values()] == [[0, 1, 2]] * ROUNDS


def test_the_check_finds_a_member_that_passed_too_early() -> None:
    early = Record(came={1: [0.0, 2.0]}, went={1: [(1.0, 0), (3.0, 1)]})
    with pytest.raises(AssertionError, match="before another arrived"):
        check(early)
    with pytest.raises(AssertionError, match="twice"):
        check(Record(came={1: [0.0, 0.0]}, went={1: [(1.0, 0), (1.0, 0)]}))


BOUND = LEASE + CHECK_EVERY * PARTIES + LOST_MESSAGE + 1.0
"""Seconds within which the others notice a crash: the lease, then the next check by the first member that is alive."""


ARRIVED = 9
"""Steps after which a member has surely arrived: an entry, two reads, and a write, each with a request and a reply."""


def crash_after(steps: int, seed: int, *, drop_dead: bool, stays: bool) -> bool:
    """Kill a member after ``steps`` steps; return whether this cut it short. The others must pass within the bound."""
    harness = SimulatedHarness(seed, latency=LATENCY)

    async def body(_: Harness) -> bool:
        victim, ended, others = harness.machine("victim"), list[int](), list[str]()

        def made(client: object) -> AsyncBarrier:
            barrier: AsyncBarrier = client.barrier("a", 2, lease=LEASE, drop_dead=drop_dead)  # type: ignore[attr-defined]
            return barrier

        async def take_part(client: object, seconds: float) -> None:
            barrier = made(client)
            if not stays:
                await barrier.wait()
                return
            await barrier.enter()
            await victim.sleep(seconds)
            await barrier.leave()

        async def work() -> None:
            await take_part(victim.client(Memory()), 0.5)
            ended.append(1)

        async def other() -> None:
            await harness.sleep(0.3)
            try:
                await take_part(harness.client(Memory()), 0.1)
                others.append("met")
            except BrokenBarrier:
                others.append("broken")

        victim.spawn(work)
        job = harness.spawn(other)
        victim.kill(after=steps + 1)
        while not ended and not victim.machine.killed:
            await harness.sleep(0.01)
        start = harness.now()
        if not await job.join(BOUND):  # The victim had not arrived, or was dropped. So another must take its place.
            assert drop_dead or steps < ARRIVED, "the other does not notice the crash"
            assert await harness.spawn(lambda: take_part(harness.client(Memory()), 0.1)).join(BOUND)
            assert await job.join(BOUND), "the other does not pass together with a new member"
        assert harness.now() - start <= 2 * BOUND + 0.5
        assert others[0] == "met" or not drop_dead
        await harness.sleep(2 * LEASE)
        assert await harness.client(Memory()).holds() == []
        return not ended

    return harness.run(body)


@pytest.mark.parametrize("stays", [False, True], ids=["wait", "enter and leave"])
@pytest.mark.parametrize("drop_dead", [False, True], ids=["breaks", "leaves out"])
def test_a_member_is_killed_after_every_step(drop_dead: bool, stays: bool) -> None:
    steps = 0
    while crash_after(steps, steps % 5, drop_dead=drop_dead, stays=stays):
        steps += 1
    assert steps > ARRIVED, "the sweep reaches members that have arrived"


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.DROP_REQUEST, Kind.DUPLICATE, Kind.DELAY_REPLY, Kind.LATE])
def test_a_fault_at_each_request_of_a_member(kind: Kind, number: int) -> None:
    async def body(harness: Harness) -> None:
        faulty = harness.client(Faulty(Memory(), nth(number, Fault(kind, 0.3))), response_timeout=1.0)
        one, other = (client.barrier("a", 2, lease=LEASE) for client in (faulty, harness.client(Memory())))
        for _ in range(2):
            assert sorted(await harness.gather(one.wait(), other.wait())) == [0, 1]
        await harness.sleep(2 * LEASE)
        assert await harness.client(Memory()).holds() == []

    SimulatedHarness(number, latency=LATENCY).run(body)


@pytest.mark.parametrize("drop_dead", [False, True], ids=["breaks", "leaves out"])
def test_a_member_that_was_stopped_beyond_its_lease_gets_an_error(drop_dead: bool) -> None:
    async def body(_: Harness) -> None:
        machine = harness.machine("stopped", rate=1.0)
        client = machine.client(Memory())
        job = machine.spawn(lambda: client.barrier("a", 2, lease=LEASE, drop_dead=drop_dead).wait())
        await harness.sleep(1.0)
        machine.stall(3 * LEASE)
        await harness.sleep(2 * LEASE)
        meeting = harness.client(Memory()).barrier("a", 2, lease=LEASE, drop_dead=drop_dead)
        waits = harness.spawn(lambda: meeting.wait(timeout=1.0))
        with pytest.raises(AcquireTimeout if drop_dead else BrokenBarrier):
            await waits.result()
        with pytest.raises(LeaseLost if drop_dead else BrokenBarrier):
            await job.result()

    harness = SimulatedHarness(4, latency=LATENCY)
    harness.run(body)

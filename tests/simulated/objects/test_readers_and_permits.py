"""Readers, writers and permits under faults: valid holds never conflict, and every client makes progress.

As in `test_workers`, every seed is a history of its own, with drifting clocks, lost, doubled and late messages, and
workers that are stopped and killed at any moment, also between an upgrade and its release.
"""

import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from leasehold import AsyncHold, LeaseLost, StoreUnavailable
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, sometimes
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.fate import all_end, disturb

LEASE = 3.0
WORKERS, ROUNDS, LIMIT = 6, 4, 3
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


@dataclass(slots=True)
class Claim:
    """One hold, and the period of true time in which its holder considered it valid.

    ``what`` is the mode, such as ``reader``.
    """

    worker: int
    what: str
    permits: int
    since: float
    until: float
    token: int


@dataclass
class Record:
    claims: list[Claim] = field(default_factory=list)
    upgrades: list[tuple[int, int]] = field(default_factory=list)  # tokens of the upgradeable hold and of the writer
    freed: int = 0  # holders that an operator has removed
    rounds: int = 0
    over: bool = False


Turn = Callable[["Worker"], Awaitable[None]]


class Worker:
    """Does its turns, and records each hold that it has."""

    def __init__(
        self, harness: SimulatedHarness, number: int, record: Record, plan: Callable[[Call], Fault | None]
    ) -> None:
        self.harness, self.number, self.record = harness, number, record
        self.machine = harness.machine(f"worker-{number}")
        self.client = self.machine.client(Faulty(Memory(), plan), response_timeout=1.0)
        self.chance = random.Random(harness.scheduler.random.random())

    async def work(self, turn: Turn) -> None:
        for _ in range(ROUNDS):
            await self.machine.sleep(self.chance.uniform(0.0, 2.0))
            with contextlib.suppress(StoreUnavailable, LeaseLost):
                await turn(self)
                self.record.rounds += 1

    async def believe(self, hold: AsyncHold, what: str, permits: int = 1) -> None:
        """Use the hold for a while, check it now and then, and record how long it was valid."""
        now = self.harness.scheduler.time
        claim = Claim(self.number, what, permits, now, now, hold.token)
        self.record.claims.append(claim)
        until = self.machine.now() + self.chance.uniform(0.0, 2 * LEASE)
        try:
            while self.machine.now() < until:
                hold.raise_if_lost()
                machine = self.machine.machine
                deadline = (self.machine.now() + hold.remaining - machine.offset) / machine.rate
                pause = self.chance.uniform(0.0, 0.2)
                # Valid until the next check, or until the deadline that is known now.
                claim.until = min(deadline, self.harness.scheduler.time + pause / machine.rate)
                await self.machine.sleep(pause)
        finally:  # A block can end early, for example when the upgradeable hold around it is lost.
            claim.until = min(claim.until, self.harness.scheduler.time)


def reads_and_writes(fair: bool) -> Turn:
    async def turn(worker: Worker) -> None:
        lock = worker.client.rw_lock("a", fair=fair, lease=LEASE)
        match worker.chance.choice(("read", "read", "write", "upgrade", "upgrade", "step down")):
            case "read":
                async with lock.reader() as hold:
                    await worker.believe(hold, "reader")
                    async with lock.reader() as again:
                        await worker.believe(again, "reader")
            case "write":
                async with lock.writer() as hold:
                    await worker.believe(hold, "writer")
            case "upgrade":
                async with lock.upgradeable() as hold:
                    await worker.believe(hold, "upgradeable")
                    writing = await hold.upgrade(timeout=worker.chance.choice((None, 0, 1.0)))
                    if writing is not None:
                        worker.record.upgrades.append((hold.token, writing.token))
                        async with writing:
                            await worker.believe(writing, "writer")
                    await worker.believe(hold, "upgradeable")
            case "step down":
                async with lock.writer() as hold:
                    await worker.believe(hold, "writer")
                    async with lock.reader() as reader:
                        await hold.release()
                        await worker.believe(reader, "reader")

    return turn


def takes_permits(fair: bool) -> Turn:
    async def turn(worker: Worker) -> None:
        size = worker.chance.randint(1, LIMIT)
        async with worker.client.semaphore("a", LIMIT, fair=fair, lease=LEASE).permits(size) as hold:
            await worker.believe(hold, "permits", size)

    return turn


async def disturbed(harness: SimulatedHarness, workers: list[Worker], chance: random.Random) -> None:
    await disturb(harness, workers, chance, chance.randrange(7), LEASE, pause=3.0, kills=0.3)


async def free_holders(harness: SimulatedHarness, record: Record, chance: random.Random) -> None:
    """Remove a random holder, again and again, as an operator may; it learns of that at its next renewal."""
    operator = harness.machine("operator").client(Memory())
    while not record.over:
        await harness.sleep(chance.uniform(0.0, LEASE))
        info = await operator.inspect("a")
        if info is not None and info.holders:
            record.freed += await operator.force_release("a", chance.choice(info.holders).token or 0)


def scenario(harness: SimulatedHarness, turn: Turn, *, hostile: bool = True, freed: bool = False) -> Record:
    record = Record()

    async def body(_: Harness) -> None:
        chance = random.Random(harness.scheduler.random.random())
        plan = sometimes(chance, RATES if hostile else {}, LEASE / 2)
        workers = [Worker(harness, number, record, plan) for number in range(WORKERS)]
        jobs = [worker.machine.spawn(lambda worker=worker: worker.work(turn)) for worker in workers]
        if freed:
            harness.spawn(lambda: free_holders(harness, record, chance))
        if hostile:
            await disturbed(harness, workers, chance)
        await all_end(harness, workers, jobs, LEASE)
        record.over = True
        await harness.sleep(3 * LEASE)
        observer = harness.client(Memory())
        assert await observer.holds() == [], "a dead client's lock outlived its lease"

    harness.run(body)
    return record


def conflict(one: Claim, other: Claim) -> bool:
    """Return whether two claims must not be valid at the same time."""
    if one.worker == other.worker or one.what == "permits":
        return False
    return "writer" in (one.what, other.what) or one.what == other.what == "upgradeable"


def check(record: Record) -> None:
    claims = sorted(record.claims, key=lambda claim: claim.since)
    for number, one in enumerate(claims):
        for other in claims[number + 1 :]:
            if conflict(one, other):
                assert one.until <= other.since + 1e-9, f"{one} overlaps {other}"
                if other.what == "writer":
                    assert one.token < other.token, f"the writer's token is not above: {one} {other}"
        alongside = [other for other in claims if other.since <= one.since < other.until]
        out = sum(other.permits for other in alongside if other.what == "permits")
        assert out <= LIMIT, f"{out} permits are out at {one.since}: {alongside}"


def check_upgrades(record: Record) -> None:
    """Check that no other client wrote between the grant of an upgradeable hold and its upgrade."""
    for read, wrote in record.upgrades:
        between = [claim for claim in record.claims if claim.what == "writer" and read < claim.token < wrote]
        assert not between, f"the upgrade of {read} to {wrote} undoes the write of {between}"


TURNS = {
    "rw": reads_and_writes(True),
    "rw-unfair": reads_and_writes(False),
    "permits": takes_permits(True),
    "permits-unfair": takes_permits(False),
}


def run_seeds(seeds: range, turn: Turn, *, freed: bool = False) -> Record:
    """Run a scenario for each seed. Those of holders that are ``freed`` may overlap, until they learn of it."""
    whole = Record()
    for seed in seeds:
        try:
            record = scenario(SimulatedHarness(seed, latency=LATENCY), turn, freed=freed)
            check_upgrades(record)
            if not freed:
                check(record)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        whole.upgrades += record.upgrades
        whole.freed += record.freed
        whole.rounds += record.rounds
    return whole


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("block", range(2))
def test_valid_holds_never_conflict_and_every_client_makes_progress(turn: str, block: int) -> None:
    whole = run_seeds(range(block * 15, block * 15 + 15), TURNS[turn])
    assert whole.rounds > 15 * WORKERS
    assert len(whole.upgrades) > 15 or "rw" not in turn


@pytest.mark.parametrize("turn", ["rw", "rw-unfair"])
def test_an_upgrade_undoes_no_write_though_holders_vanish_from_the_store(turn: str) -> None:
    whole = run_seeds(range(50), TURNS[turn], freed=True)
    assert len(whole.upgrades) > 25
    assert whole.freed > 100


@pytest.mark.nightly
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("block", range(10))
def test_many_more_seeds(turn: str, block: int) -> None:
    run_seeds(range(1000 + block * 200, 1000 + block * 200 + 200), TURNS[turn])


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("seed", range(5))
def test_without_faults_no_hold_is_lost(turn: str, seed: int) -> None:
    record = scenario(SimulatedHarness(seed, latency=LATENCY), TURNS[turn], hostile=False)
    check(record)
    assert record.rounds == WORKERS * ROUNDS


@pytest.mark.parametrize("turn", ["rw", "permits"])
def test_the_scenario_finds_a_broken_promise(turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seeds fail if a client computes its deadline too late."""
    monkeypatch.setattr("leasehold._engine.lease.deadline_of", lambda since, lease: since + lease * 1.5)
    with pytest.raises(AssertionError, match=r"overlaps|are out at"):
        run_seeds(range(100), TURNS[turn])

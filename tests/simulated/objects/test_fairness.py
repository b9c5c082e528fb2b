"""A hundred clients arrive one after another: compares the order of grants with the order of arrival."""

import random
from collections.abc import Callable

import pytest

from leasehold import AsyncClient
from leasehold.primitives.locks.lock import AsyncMutex
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.system import GOOD
from models.systems.zookeeper import ZooKeeperSystem
from models.zookeeper.transport import SimulatedZooKeeper

CONTENDERS = 100
LATENCY = (0.0001, 0.02)
APART = 0.1
"""Seconds between two arrivals. Two messages take less, so the order of arrival is known."""

Make = Callable[[AsyncClient, int], AsyncMutex]


def run(seed: int, make: Make, holder: Make) -> tuple[list[int], float]:
    """Let a hundred clients arrive while one holds; return the order in which they entered, and the whole time."""
    entered, took = run_with_tokens(seed, make, holder)
    return [number for number, _ in entered], took


def run_with_tokens(seed: int, make: Make, holder: Make) -> tuple[list[tuple[int, int]], float]:
    """Do what ``run`` does, and also return the token of each grant."""
    harness, entered, took = SimulatedHarness(seed, latency=LATENCY), list[tuple[int, int]](), 0.0

    async def body(_: Harness) -> None:
        nonlocal took
        chance = random.Random(seed)
        first = await holder(harness.client(Memory()), -1).acquire()
        assert first is not None
        jobs = []

        async def work(number: int) -> None:
            async with make(harness.client(Memory()), number) as hold:
                entered.append((number, hold.token))
                await harness.sleep(chance.uniform(0.0, 0.1))

        for number in range(CONTENDERS):
            jobs.append(harness.spawn(lambda number=number: work(number)))
            await harness.sleep(APART)
        start = harness.now()
        await first.release()
        for job in jobs:
            await job.result()
        took = harness.now() - start

    harness.run(body)
    return entered, took


def overtaken(entered: list[int]) -> int:
    """Return the largest number of later clients that entered before one client."""
    return max(sum(other > one for other in entered[:place]) for place, one in enumerate(entered))


def plain(client: AsyncClient, number: int) -> AsyncMutex:
    return client.lock("a")


def fair(client: AsyncClient, number: int) -> AsyncMutex:
    return client.lock("a", fair=True)


def rw(client: AsyncClient, number: int) -> AsyncMutex:
    lock = client.rw_lock("a")
    return lock.writer() if number % 10 in (-1, 9) else lock.reader()


def writer(client: AsyncClient, number: int) -> AsyncMutex:
    return client.rw_lock("a").writer()


def permits(client: AsyncClient, number: int) -> AsyncMutex:
    return client.semaphore("a", 3).permits(3 if number < 0 or number % 10 == 9 else 1)


@pytest.mark.parametrize("make", [plain, fair])
@pytest.mark.parametrize("seed", range(5))
def test_locks_are_granted_in_order_of_arrival(seed: int, make: Make) -> None:
    """Plain locks are, too, while no lease expires: each release hands the lock to the longest waiter."""
    entered, _ = run(seed, make, make)
    assert entered == list(range(CONTENDERS))
    assert overtaken(entered) == 0


@pytest.mark.parametrize("seed", range(5))
def test_writers_enter_in_order_of_arrival(seed: int) -> None:
    entered, _ = run(seed, writer, writer)
    assert entered == list(range(CONTENDERS))


@pytest.mark.parametrize("seed", range(5))
def test_neither_readers_nor_writers_starve(seed: int) -> None:
    """Every tenth client writes. It enters after all earlier clients and before all later ones. Readers share."""
    entered, took = run(seed, rw, writer)
    assert sorted(entered) == list(range(CONTENDERS))
    for place, number in enumerate(entered):
        if number % 10 == 9:
            assert set(entered[:place]) == set(range(number))
    assert overtaken(entered) < 9, "a reader can only overtake readers of its own group, by the delay of a message"
    assert took < 10 * (0.1 + 0.1 + 4 * LATENCY[1]), "nine readers take no longer than the slowest of them"


@pytest.mark.parametrize("seed", range(25))
def test_small_requests_do_not_starve_large_ones(seed: int) -> None:
    """Every tenth client requests all permits. It enters after all earlier clients and before all later ones.

    The tokens show that grants are in the order of arrival. Clients with small requests may enter in another order,
    since a grant message can arrive after the next one.
    """
    tokens, _ = run_with_tokens(seed, permits, permits)
    assert sorted(tokens, key=lambda one: one[1]) == sorted(tokens), "granted in the order of arrival"
    entered = [number for number, _ in tokens]
    for place, number in enumerate(entered):
        if number % 10 == 9:
            assert set(entered[:place]) == set(range(number))


@pytest.mark.parametrize(("session", "lease"), [(4.0, 8.0), (10.0, 60.0)])
def test_waiters_with_a_lease_longer_than_their_session_keep_their_places(session: float, lease: float) -> None:
    """The session ends the node of a dead waiter; a waiter is renewed after a third of its lease only."""
    harness, entered = SimulatedHarness(1), list[int]()

    async def body(_: Harness) -> None:
        opener = SimulatedZooKeeper(ZooKeeperSystem(harness, 1.0, GOOD).members, session)
        first = await harness.machine("first").client(opener).lock("a", lease=lease).acquire()
        jobs = []

        async def work(number: int, client: AsyncClient) -> None:
            async with client.lock("a", lease=lease):
                entered.append(number)

        for number in range(4):
            client = harness.machine(f"m{number}").client(opener)
            jobs.append(harness.spawn(lambda number=number, client=client: work(number, client)))
            await harness.sleep(lease / 10)
        await harness.sleep(2 * lease)
        assert first is not None
        await first.release()
        for job in jobs:
            await job.result()

    harness.run(body)
    assert entered == list(range(4))


def test_the_measure_counts_overtaking_clients() -> None:
    assert overtaken([0, 1, 2]) == 0
    assert overtaken([1, 2, 0]) == 2

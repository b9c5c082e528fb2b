"""A hundred who come one after another: the order of grants against the order of arrival, measured."""

import random
from collections.abc import Callable

import pytest

from leasehold import AsyncClient
from leasehold.primitives.locks.lock import AsyncMutex
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

CONTENDERS = 100
LATENCY = (0.0001, 0.02)
APART = 0.1
"""Seconds between two arrivals: more than two messages take, so that it is known who came first."""

Make = Callable[[AsyncClient, int], AsyncMutex]


def run(seed: int, make: Make, holder: Make) -> tuple[list[int], float]:
    """Let a hundred come while one holds; return them in the order in which they entered, and how long all took."""
    entered, took = watched(seed, make, holder)
    return [number for number, _ in entered], took


def watched(seed: int, make: Make, holder: Make) -> tuple[list[tuple[int, int]], float]:
    """Do what ``run`` does; who entered comes with the token of its grant."""
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
    """Return the largest number of later ones who entered before somebody."""
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
def test_locks_are_had_in_order_of_arrival(seed: int, make: Make) -> None:
    """Of a plain one too, as long as no lease runs out: each release hands it to the one who has waited longest."""
    entered, _ = run(seed, make, make)
    assert entered == list(range(CONTENDERS))
    assert overtaken(entered) == 0


@pytest.mark.parametrize("seed", range(5))
def test_writers_enter_in_order_of_arrival(seed: int) -> None:
    entered, _ = run(seed, writer, writer)
    assert entered == list(range(CONTENDERS))


@pytest.mark.parametrize("seed", range(5))
def test_neither_readers_nor_writers_starve(seed: int) -> None:
    """Every tenth writes: it enters after all who came before it and before all after it; readers enter together."""
    entered, took = run(seed, rw, writer)
    assert sorted(entered) == list(range(CONTENDERS))
    for place, number in enumerate(entered):
        if number % 10 == 9:
            assert set(entered[:place]) == set(range(number))
    assert overtaken(entered) < 9, "readers pass only those of their own group, by a message's delay"
    assert took < 10 * (0.1 + 0.1 + 4 * LATENCY[1]), "nine readers take no longer than the slowest of them"


@pytest.mark.parametrize("seed", range(25))
def test_small_requests_do_not_starve_large_ones(seed: int) -> None:
    """Every tenth asks for all permits: nobody who came later is in before it, nor it before any who came earlier.

    Grants are in the order of arrival, as the tokens tell. Among small requests a grant's message may take longer than
    the next one's message and block.
    """
    tokens, _ = watched(seed, permits, permits)
    assert sorted(tokens, key=lambda one: one[1]) == sorted(tokens), "granted in the order of arrival"
    entered = [number for number, _ in tokens]
    for place, number in enumerate(entered):
        if number % 10 == 9:
            assert set(entered[:place]) == set(range(number))


def test_the_measure_sees_who_is_overtaken() -> None:
    assert overtaken([0, 1, 2]) == 0
    assert overtaken([1, 2, 0]) == 2

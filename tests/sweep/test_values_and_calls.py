"""Versioned and cached values, once, schedules, synchronized functions: killed at every step, cancelled at any time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

LEASE = 3.0
WORK = 1.3  # seconds, long enough for a renewal
AT_LEAST = 10.0

Log = list[str]
Scenario = Callable[[Harness, AsyncClient, Log], Awaitable[Any]]


async def once(harness: Harness, client: AsyncClient, log: Log) -> Any:
    async def work() -> str:
        log.append("began")
        await harness.sleep(WORK)
        log.append("done")
        return f"result {log.count('done')}"

    return await client.once("payment", ttl=3600, lease=LEASE).run(work)


async def shared(harness: Harness, client: AsyncClient, log: Log) -> Any:
    async def fetch() -> str:
        log.append("began")
        await harness.sleep(WORK)
        log.append("done")
        return f"token {log.count('done')}"

    return await client.cached("token", 3600, fetch, lease=LEASE).get()


async def scheduled(harness: Harness, client: AsyncClient, log: Log) -> bool:
    async def work() -> None:
        log.append("began")
        await harness.sleep(WORK)
        log.append("done")

    return await client.scheduled("mail", at_least=AT_LEAST, at_most=LEASE).run(work)


async def tick(harness: Harness, client: AsyncClient, log: Log) -> bool:
    async def work() -> None:
        log.append("began")
        await harness.sleep(WORK)
        log.append("done")

    return await client.scheduled("mail", at_most=LEASE).run(work, tick=len(NEXT))


NEXT: list[None] = []
"""As many as the number of the present tick."""


async def synchronized(harness: Harness, client: AsyncClient, log: Log) -> str:
    @client.synchronized("order:{order}", lease=LEASE)
    async def ship(order: int) -> str:
        log.append("began")
        await harness.sleep(WORK)
        log.append("done")
        return f"shipped {order}"

    return await ship(7)


async def versioned(harness: Harness, client: AsyncClient, log: Log) -> Any:
    async def change(seen: int | None) -> int:
        await harness.sleep(WORK)
        return (seen or 0) + 1

    value = (await client.versioned("views").update(change)).value
    log.append("done")
    return value


async def judge(scenario: Scenario, other: Harness, client: AsyncClient, log: Log) -> None:
    """Run the scenario on another client after the first was interrupted, and check the results of both."""
    before, start = list(log), other.now()
    result = await scenario(other, client, log)
    assert other.now() - start <= LEASE + WORK + 0.1, "the other client finishes within a lease"
    if scenario is once or scenario is shared:
        assert log.count("began") <= 2
        again = await scenario(other, client, log)
        assert again == result, "all clients get the same result"
        assert log.count("done") in (before.count("done"), before.count("done") + 1)
    elif scenario is scheduled:
        assert log.count("began") <= 1, "the tick ran twice"
        await other.sleep(AT_LEAST + LEASE)
        began = log.count("began")
        assert await scenario(other, client, log), "the next tick runs"
        assert log.count("began") == began + 1
    elif scenario is tick:
        await other.sleep(AT_LEAST + LEASE)
        result = await scenario(other, client, log) or result  # the lease of a dead one has ended
        assert log.count("began") <= 1, "the tick ran twice"
        assert not await scenario(other, client, log)
        assert not (result and before), "a tick that has begun is not run by another"
        NEXT.append(None)
        assert await scenario(other, client, log), "the next tick runs"
    elif scenario is versioned:
        assert before.count("done") < result <= before.count("done") + 2


SCENARIOS = [once, shared, scheduled, tick, synchronized, versioned]


def ordered(seed: int) -> SimulatedHarness:
    """Make a harness whose network keeps requests in order: no acquire arrives after the release that undoes it."""
    return SimulatedHarness(seed, latency=(0.0005, 0.0005))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_kill_after_every_step(scenario: Scenario) -> None:
    step = 0
    while killed(ordered(step), scenario, step):
        step += 1
    assert step >= 4, "the scenario has that many steps"


def killed(harness: SimulatedHarness, scenario: Scenario, steps: int) -> bool:
    """Kill the first client after ``steps`` steps; return whether it had that many."""

    async def body(_: Harness) -> bool:
        victim, log, ended = harness.machine("victim"), Log(), []
        client = victim.client(Memory())

        async def work() -> None:
            ended.append(await scenario(victim, client, log))

        victim.spawn(work)
        victim.kill(after=steps + 1)
        while not ended and not victim.machine.killed:
            await harness.sleep(0.01)
        if not victim.machine.killed:
            victim.machine.last_step = None  # so that its close is not interrupted
            return False
        await judge(scenario, harness, harness.client(Memory()), log)
        return True

    return harness.run(body)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_cancellation_at_many_moments(scenario: Scenario) -> None:
    """Nothing is held afterwards, so the other client need not wait until a lease expires."""
    moments = [number * 0.0002 for number in range(60)] + [WORK + number * 0.0002 for number in range(-5, 60)]
    cut_short = sum(cancelled(ordered(number), scenario, moment) for number, moment in enumerate(moments))
    assert cut_short > 60, "that many moments lie within the scenario"


def cancelled(harness: SimulatedHarness, scenario: Scenario, moment: float) -> bool:
    """Cancel the first client at a moment; return whether it was still running."""

    async def body(_: Harness) -> bool:
        log = Log()
        first, other = harness.client(Memory()), harness.client(Memory())
        job = harness.spawn(lambda: scenario(harness, first, log))
        await harness.sleep(moment)
        was_running = not job.done()
        job.cancel()
        await job.join(5.0)
        assert job.done()
        assert await other.holds() == [], "a hold was left behind"
        start = harness.now()
        await judge(scenario, harness, other, log)
        if scenario not in (scheduled, tick):
            assert harness.now() - start <= WORK + 0.1, "it waited for a lease"
        return was_running

    return harness.run(body)

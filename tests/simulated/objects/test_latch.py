"""Latches under faults: each call counts once, whichever message is lost, and no wait is longer than promised."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold import StoreUnavailable
from leasehold.primitives.coordination import journal
from leasehold.primitives.coordination.journal import LOST_MESSAGE
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, always, nth, sometimes
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

LATENCY = (0.0001, 0.02)
PATIENCE = 1.0
RATES = {
    Kind.REFUSE: 0.03,
    Kind.DROP_REQUEST: 0.05,
    Kind.DROP_REPLY: 0.05,
    Kind.DUPLICATE: 0.05,
    Kind.DELAY_REQUEST: 0.03,
    Kind.DELAY_REPLY: 0.03,
    Kind.LATE: 0.05,
    Kind.DEAF: 0.2,
}


@dataclass
class Record:
    """What the callers know: how many calls were surely counted, how many perhaps, and when waiters returned."""

    sure: int = 0
    perhaps: int = 0
    opened: list[float] = field(default_factory=list)
    last: float = 0.0


Plan = Callable[[Call], Fault | None]


def scenario(harness: SimulatedHarness, counters: int, each: int, plan: Plan, kills: int) -> tuple[Record, int]:
    """Let some clients count and others wait; return the record, and the count of the latch at the end."""
    record, total, left = Record(), counters * each, [0]

    async def body(_: Harness) -> None:
        chance = random.Random(harness.scheduler.random.random())
        machines = [harness.machine(f"counter-{number}") for number in range(counters)]

        async def count(number: int) -> None:
            machine = machines[number]
            latch = machine.client(Faulty(Memory(), plan), response_timeout=PATIENCE).latch("a", total)
            for _ in range(each):
                await machine.sleep(chance.uniform(0.0, 0.5))
                record.perhaps += 1
                try:
                    await latch.count_down()
                except StoreUnavailable as error:
                    record.perhaps -= not error.unknown
                else:
                    record.sure, record.perhaps = record.sure + 1, record.perhaps - 1
                    record.last = harness.scheduler.time

        async def wait() -> None:
            latch = harness.client(Faulty(Memory(), plan), response_timeout=PATIENCE).latch("a", total)
            while True:
                with contextlib.suppress(StoreUnavailable):
                    if await latch.wait(timeout=60.0):
                        record.opened.append(harness.scheduler.time)
                    return

        jobs = [machines[number].spawn(lambda number=number: count(number)) for number in range(counters)]
        waiters = [harness.spawn(wait) for _ in range(3)]
        for _ in range(kills):
            await harness.sleep(chance.uniform(0.0, 0.5 * each))
            machine = chance.choice(machines)
            if chance.random() < 0.5:
                machine.stall(chance.uniform(0.1, 3.0))
            else:
                machine.kill()
        for job, machine in zip(jobs, machines, strict=True):
            while not await job.join(1.0) and not machine.machine.killed:
                assert harness.scheduler.time < 1000.0, "a count never ends"
        await harness.sleep(2 * PATIENCE)  # delayed messages have arrived
        left[0] = await harness.client(Memory()).latch("a", total).count()
        for waiter in waiters:
            while not await waiter.join(1.0):
                assert harness.scheduler.time < 1000.0, "a wait never ends"
            assert waiter.exception() is None

    harness.run(body)
    return record, left[0]


def check(record: Record, left: int, total: int) -> None:
    counted = total - left
    assert record.sure <= counted <= record.sure + record.perhaps, f"{record} but {counted} were counted"
    if left:
        assert not record.opened
    elif record.sure == total:
        assert len(record.opened) == 3
        assert max(record.opened) <= record.last + LOST_MESSAGE + 2 * PATIENCE + 1.0


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 10**6), counters=st.integers(1, 6), each=st.integers(1, 5), kills=st.integers(0, 3))
def test_every_call_counts_once_whichever_message_is_lost(seed: int, counters: int, each: int, kills: int) -> None:
    chance = random.Random(seed)
    harness = SimulatedHarness(seed, latency=LATENCY)
    record, left = scenario(harness, counters, each, sometimes(chance, RATES, PATIENCE / 2), kills)
    check(record, left, counters * each)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_many_more_seeds(block: int) -> None:
    for seed in range(10_000 + 300 * block, 10_000 + 300 * block + 300):
        harness = SimulatedHarness(seed, latency=LATENCY)
        record, left = scenario(harness, 5, 4, sometimes(random.Random(seed), RATES, PATIENCE / 2), 2)
        check(record, left, 20)


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_all_calls_count_and_waiters_return_at_once(seed: int) -> None:
    record, left = scenario(SimulatedHarness(seed, latency=LATENCY), 6, 5, lambda call: None, 0)
    assert (record.sure, record.perhaps, left) == (30, 0, 0)
    assert len(record.opened) == 3
    assert max(record.opened) - record.last < 4 * LATENCY[1]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.DROP_REQUEST, Kind.DUPLICATE, Kind.LATE, Kind.DELAY_REPLY])
def test_a_fault_at_each_request_of_a_count(kind: Kind, number: int) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(Faulty(Memory(), nth(number, Fault(kind, 0.2))), response_timeout=2.0)
        other = harness.client(Memory()).latch("a", 10)
        assert await client.latch("a", 10).count_down() == 9
        assert await other.count_down() == 8
        assert await client.latch("a", 10).count_down() == 7
        await harness.sleep(1.0)
        assert await other.count() == 7

    for seed in range(5):
        SimulatedHarness(seed, latency=LATENCY).run(body)


def test_the_outcome_of_a_count_is_unknown_if_a_reply_is_lost_and_the_retry_is_refused() -> None:
    faults = {1: Fault(Kind.DROP_REPLY), 2: Fault(Kind.REFUSE)}

    async def body(harness: Harness) -> None:
        client = harness.client(Faulty(Memory(), lambda call: faults.get(call.number)))
        with pytest.raises(StoreUnavailable) as caught:
            await client.latch("a", 10).count_down()
        assert caught.value.unknown
        assert await harness.client(Memory()).latch("a", 10).count() == 9

    SimulatedHarness().run(body)


def test_a_count_raises_if_the_journal_no_longer_shows_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal keeps only the latest counts. A retry that cannot find its own entry must not count again."""
    monkeypatch.setattr(journal, "KEPT", 2)
    lost = nth(1, Fault(Kind.DROP_REPLY, 0.5), method="compare_and_set")

    async def body(harness: Harness) -> None:
        client, other = harness.client(Faulty(Memory(), lost)), harness.client(Memory()).latch("a", 10)
        job = harness.spawn(lambda: client.latch("a", 10).count_down())
        await harness.sleep(0.1)
        for _ in range(3):
            await other.count_down()
        with pytest.raises(StoreUnavailable) as caught:
            await job.result()
        assert caught.value.unknown
        assert await other.count() == 6

    SimulatedHarness().run(body)


@pytest.mark.parametrize("polls", [False, True], ids=["no message comes", "no messages at all"])
def test_a_lost_message_delays_a_waiter_by_a_bounded_time(polls: bool) -> None:
    async def body(harness: Harness) -> None:
        if polls:
            opener = Faulty(Memory(), lambda call: None)
        else:
            opener = Faulty(Memory(), always(Fault(Kind.DEAF), ("wait_for_cell",)))
        client = harness.client(opener)
        if polls:
            object.__setattr__(client.store._inner._inner, "capabilities", Mute)  # type: ignore[attr-defined]
        waits = harness.spawn(lambda: client.latch("a", 1).wait())
        await harness.sleep(3.05)
        await harness.client(Memory()).latch("a", 1).count_down()
        start = harness.now()
        assert await waits.result()
        assert harness.now() - start <= (0.25 if polls else LOST_MESSAGE) + 4 * LATENCY[1]
        looks = [call for call in opener.calls if call.method == "compare_and_set"]
        assert len(looks) < 40

    SimulatedHarness(3, latency=LATENCY).run(body)


Mute = type("Mute", (), {"cells": True, "fencing": True, "watches": False})


def test_a_waiter_tolerates_an_outage_and_a_new_wait_raises() -> None:
    down = [False]

    async def body(harness: Harness) -> None:
        refuse = Fault(Kind.REFUSE)
        client = harness.client(Faulty(Memory(), lambda call: refuse if down[0] else None))
        waits = harness.spawn(lambda: client.latch("a", 1).wait())
        await harness.sleep(1.0)
        down[0] = True
        with pytest.raises(StoreUnavailable):
            await client.latch("a", 1).wait()
        await harness.sleep(10.0)
        down[0] = False
        await harness.client(Memory()).latch("a", 1).count_down()
        assert await waits.result()

    SimulatedHarness(1).run(body)


def test_closing_a_client_ends_its_waits() -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(Memory())
        waits = harness.spawn(lambda: client.latch("a", 1).wait())
        await harness.sleep(0.5)
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waits.result()

    SimulatedHarness(1).run(body)

"""A fault at every call of the store, a kill after every step: what was held is whole, and nothing outlives a lease."""

import contextlib
import time
from collections.abc import Callable

import pytest

from leasehold import AsyncClient, LeaseholdError, LeaseLost, StoreUnavailable
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, nth
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.flavors import both

LEASE = 1.0
FAULTS = [
    Fault(Kind.DROP_REQUEST),
    Fault(Kind.DROP_REPLY),
    Fault(Kind.DUPLICATE),
    Fault(Kind.REFUSE),
    Fault(Kind.DELAY_REPLY, LEASE + 0.2),
    Fault(Kind.DELAY_REQUEST, LEASE + 0.2),
    Fault(Kind.LATE, LEASE / 2),
]
CALLS = 9  # more than the scenario makes


async def scenario(
    harness: Harness, client: AsyncClient, other: AsyncClient, inside: Callable[[int, bool], None]
) -> None:
    """Hold, extend, hand over to a waiter, and release; every error of ours is an answer, a wrong hold is not."""
    lock = client.lock("a", lease=LEASE)

    async def hold_it(who: AsyncClient) -> None:
        with contextlib.suppress(StoreUnavailable, LeaseLost):
            async with who.lock("a", lease=LEASE, timeout=3 * LEASE) as hold:
                hold.raise_if_lost()
                inside(hold.token, True)
                await harness.sleep(LEASE / 2)
                with contextlib.suppress(StoreUnavailable):
                    await hold.renew()
                if hold.lost:
                    inside(hold.token, False)
                    return
                hold.raise_if_lost()
                inside(hold.token, False)

    await harness.gather(hold_it(client), hold_it(other))
    with contextlib.suppress(StoreUnavailable):
        await lock.acquire(blocking=False)
    with contextlib.suppress(LeaseholdError):
        await lock.release()


def run(harness: Harness, plan: Callable[[Call], Fault | None]) -> list[Call]:
    async def body(harness: Harness) -> list[Call]:
        memory = Memory(f"faults-{time.monotonic_ns()}")
        store = Faulty(memory, plan)
        looker = harness.client(memory)
        tokens: list[int] = []
        holding: set[int] = set()

        def inside(token: int, enters: bool) -> None:
            if enters:
                assert not holding, "two valid holds at one time"
                assert token > max(tokens, default=0), "tokens rise"
                tokens.append(token)
                holding.add(token)
            else:
                holding.discard(token)

        await scenario(harness, harness.client(store, response_timeout=2.0), harness.client(memory), inside)
        ended = harness.now()
        hold = await looker.lock("a", lease=LEASE).acquire(timeout=5 * LEASE)
        assert hold is not None
        assert harness.now() - ended <= LEASE * 1.5 + 0.3, "whatever was left behind ended with its lease"
        assert hold.token > max(tokens, default=0)
        await hold.release()
        return store.calls

    return harness.run(body)


def test_the_scenario_without_faults_makes_fewer_calls_than_are_swept() -> None:
    calls = run(SimulatedHarness(), lambda call: None)
    assert 5 <= len([call for call in calls if call.method != "wait"]) <= CALLS
    assert {"try_acquire", "release", "renew"} <= {call.method for call in calls}


@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind.value.replace(" ", "-"))
@pytest.mark.parametrize("seed", range(3))
def test_a_fault_at_every_call_in_virtual_time(fault: Fault, number: int, seed: int) -> None:
    run(SimulatedHarness(seed), nth(number, fault))


@pytest.mark.parametrize("number", range(CALLS - 1))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind.value.replace(" ", "-"))
def test_two_faults_in_a_row_in_virtual_time(fault: Fault, number: int) -> None:
    first, second = nth(number, fault), nth(number + 1, fault)

    def plan(call: Call) -> Fault | None:
        one, two = first(call), second(call)
        return one or two

    run(SimulatedHarness(7), plan)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind.value.replace(" ", "-"))
@both
def test_a_fault_at_every_call_in_real_time(harness: Harness, fault: Fault, number: int) -> None:
    run(harness, nth(number, fault))


@pytest.mark.parametrize("kind", ["lock", "rlock"])
@pytest.mark.parametrize("fair", [False, True])
def test_a_kill_after_every_step(kind: str, fair: bool) -> None:
    """The next gets the lock within a lease, with a higher token, and no late request releases it."""
    lease, step = 3.0, 0
    while True:
        harness = SimulatedHarness(step)
        if not killed_after(harness, step, kind, fair, lease):
            break
        step += 1
    assert step > 25, "the scenario has that many steps"


def killed_after(harness: SimulatedHarness, steps: int, kind: str, fair: bool, lease: float) -> bool:
    """Kill a client after so many of its steps; return whether it had as many."""

    async def body(_: Harness) -> bool:
        victim = harness.machine("victim")
        client = victim.client(Memory())
        ended: list[int] = []

        async def work() -> None:
            for _ in range(2):
                async with getattr(client, kind)("a", lease=lease, fair=fair) as hold:
                    await victim.sleep(1.2)  # long enough for a renewal
                    await hold.renew()
                    await victim.sleep(1.2)  # long enough for a renewal
            ended.append(1)

        victim.spawn(work)
        other = harness.client(Memory())
        victim.kill(after=steps + 1)
        while not ended and not victim.machine.killed:
            await harness.sleep(0.01)
        if ended:
            return False
        start = harness.now()
        hold = await other.lock("a", lease=lease, fair=fair).acquire(timeout=2 * lease)
        assert hold is not None
        assert harness.now() - start <= lease + 0.1, "free within a lease of the crash"
        await harness.sleep(2 * lease)
        hold.raise_if_lost()  # it was not released or broken by another
        await hold.release()
        return True

    return harness.run(body)

"""The watchdog renews at a third, doubts, ends at the deadline, batches, and lingers."""

import asyncio
import threading
import time

import pytest
from engine_cases.watchdogs import DEAD, LEASE, Switch, engine, simulate

from leasehold import Client, LeaseLost
from leasehold._engine.watchdog.watchdog import LINGER
from leasehold.client import AsyncClient
from leasehold.events import Event, InDoubt, Lost, Renewed
from leasehold.primitives.locks.rlock import AsyncRLock
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, always
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness


async def acquire_and_forget(lock: AsyncRLock) -> None:
    assert await lock.acquire() is not None


def test_it_renews_at_a_third_of_the_lease_and_only_then() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        await harness.sleep(10 * LEASE)
        assert not hold.lost
        gaps = [after - before for before, after in zip(plan.times("renew"), plan.times("renew")[1:], strict=False)]
        assert len(gaps) >= 28
        assert all(abs(gap - LEASE / 3) < 0.05 for gap in gaps)
        await hold.release()
        count = len(plan.times("renew"))
        await harness.sleep(LEASE)
        assert len(plan.times("renew")) == count, "a released hold is renewed no more"

    simulate(body)


def test_without_an_answer_it_is_in_doubt_and_comes_back() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.fault = Fault(Kind.DROP_REQUEST)
        await harness.sleep(LEASE / 2)
        assert [type(event) for event in events if isinstance(event, InDoubt | Renewed)] == [InDoubt]
        hold.raise_if_lost()
        plan.fault = None
        await harness.sleep(LEASE)
        assert [type(event) for event in events if isinstance(event, InDoubt | Renewed)] == [InDoubt, Renewed]
        hold.raise_if_lost()

    simulate(body)


@pytest.mark.parametrize("fault", [Fault(Kind.DROP_REQUEST), Fault(Kind.REFUSE), DEAD], ids=str)
def test_without_any_answer_it_is_lost_at_the_deadline_and_not_later(fault: Fault) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        told: list[float] = []
        hold.on_lost(lambda error: told.append(harness.now()))
        plan.fault = fault
        deadline = hold._lease.deadline
        await harness.sleep(2 * LEASE)
        assert len(told) == 1
        assert deadline <= told[0] <= deadline + 1e-6
        with pytest.raises(LeaseLost, match="expired"):
            hold.raise_if_lost()
        assert [type(event) for event in events if isinstance(event, Lost)] == [Lost]

    simulate(body)


@pytest.mark.parametrize("ends_by", ["its deadline", "a renewal that finds nothing"])
def test_a_slow_callback_costs_no_other_holder_its_hold(ends_by: str) -> None:
    lease, called, go_on = 4.0, threading.Event(), threading.Event()  # the machine may be a second late

    def stay(error: LeaseLost) -> None:
        called.set()
        go_on.wait(5 * lease)

    with Client.from_url("memory:") as client:
        kept = [client.lock(f"kept {number}", lease=lease).acquire() for number in range(3)]
        lost = client.lock("lost", lease=1.5, renew=ends_by != "its deadline").acquire()
        also = client.lock("lost, too", lease=3.0, renew=False).acquire()
        last = client.lock("kept, too", lease=lease).acquire()
        assert lost is not None
        assert also is not None
        told = threading.Event()
        lost.on_lost(stay)
        also.on_lost(lambda error: told.set())
        if ends_by != "its deadline":
            assert client.force_release("lost", lost.token)
        assert called.wait(2 * lease)
        assert told.wait(2 * lease), "the next one is told while the first still thinks about it"
        for hold in (*kept, last):
            assert hold is not None
            hold.raise_if_lost()
        time.sleep(1.25 * lease)
        for hold in (*kept, last):
            assert hold is not None
            hold.raise_if_lost()
        go_on.set()


def test_a_stuck_store_delays_no_other_deadline() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        told: dict[int, float] = {}
        holds = {}
        for number in range(5):
            holds[number] = await client.lock(f"n{number}", lease=3.0 + number).acquire()
            holds[number].on_lost(lambda error, number=number: told.setdefault(number, harness.now()))
        plan.fault = DEAD
        await harness.sleep(10.0)
        for number, hold in holds.items():
            assert told[number] == pytest.approx(hold._lease.deadline, abs=1e-6)

    simulate(body)


def test_a_broken_hold_is_told_at_the_next_renewal() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        start, told = harness.now(), []
        hold.on_lost(lambda error: told.append(harness.now() - start))
        assert await client.force_release("a", hold.token)
        await harness.sleep(LEASE)
        assert len(told) == 1
        assert told[0] <= LEASE / 3 + 0.1

    simulate(body)


def test_a_fixed_lease_is_never_renewed_even_if_its_ticket_was_while_it_waited() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        first = await client.lock("a", lease=LEASE).acquire()
        assert first is not None
        job = harness.spawn(client.lock("a", lease=LEASE, renew=False).acquire)
        # the renewal of the waiting ticket is under way when the name is handed over
        plan.fault, plan.methods = Fault(Kind.DELAY_REPLY, 1.0), ("renew",)
        await harness.sleep(LEASE / 3 + 0.5)
        await first.release()
        second = await job.result()
        assert second is not None
        plan.fault = None
        taken = harness.now()
        lost: list[float] = []
        second.on_lost(lambda error: lost.append(harness.now()))
        await harness.sleep(3 * LEASE)
        assert len(lost) == 1, "a fixed lease ends"
        assert lost[0] <= taken + LEASE

    simulate(body)


def test_max_hold_caps_the_renewals() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE, max_hold=3 * LEASE).acquire()
        assert hold is not None
        start, lost = harness.now(), []
        hold.on_lost(lambda error: lost.append(harness.now() - start))
        await harness.sleep(6 * LEASE)
        assert len(lost) == 1
        assert 3 * LEASE <= lost[0] <= 4 * LEASE

    simulate(body)


def test_an_extended_fixed_lease_still_ends_by_the_timer() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        for options in ({"renew": False}, {"max_hold": LEASE - 1}):
            hold = await client.lock("a", lease=LEASE, **options).acquire()  # type: ignore[arg-type]
            assert hold is not None
            lost: list[float] = []
            hold.on_lost(lambda error, lost=lost: lost.append(harness.now()))
            await harness.sleep(LEASE - 2)
            await hold.renew()
            deadline = hold._lease.deadline
            await harness.sleep(2 * LEASE)
            assert lost == [pytest.approx(deadline, abs=1e-6)], options
            with pytest.raises(LeaseLost):
                await hold.release()

    simulate(body)


def test_ten_thousand_holds_are_renewed_in_batches_by_one_watchdog() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        holds = [await client.lock(f"n{number}", lease=300.0).acquire() for number in range(10_000)]
        assert all(holds)
        plan.seen.clear()
        await harness.sleep(500.0)
        assert not any(hold.lost for hold in holds if hold)
        assert 4 * 20 <= len(plan.times("renew")) <= 5 * 25, "20 full batches a third"

    simulate(body)


def test_many_holds_cost_one_watchdog_thread() -> None:
    plan = Switch()
    with Client(Faulty(Memory("threads"), plan)) as client:
        before = threading.active_count()
        holds = [client.lock(f"n{number}", lease=6.0).acquire() for number in range(2000)]
        most = 0
        until = time.monotonic() + 4.3  # two rounds of renewals
        while time.monotonic() < until:
            most = max(most, threading.active_count() - before)
            time.sleep(0.01)
        assert not any(hold is None or hold.lost for hold in holds)
        assert [thread.name for thread in threading.enumerate()].count("leasehold-watchdog") == 1
        assert 0 < len(plan.times("renew")) < 100


def test_with_nothing_to_do_it_ends_and_the_next_ticket_starts_it() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        watchdog = engine(client).watchdog
        for _ in range(3):
            hold = await client.lock("a", lease=LEASE).acquire()
            assert hold is not None
            assert watchdog._job is not None
            await harness.sleep(2 * LEASE)
            assert not hold.lost
            await hold.release()
            await harness.sleep(2 * LINGER + LEASE)
            assert watchdog._job is None

    simulate(body)


@pytest.mark.parametrize("seed", range(40))
def test_a_ticket_that_comes_as_the_watchdog_ends_is_not_forgotten(seed: int) -> None:
    harness = SimulatedHarness(seed)

    async def body(_: Harness) -> None:
        client = harness.client("memory:")
        async with client.lock("a", lease=LEASE):
            pass
        await harness.sleep(LINGER + harness.scheduler.random.uniform(-0.01, 0.01))
        async with client.lock("a", lease=LEASE) as hold:
            await harness.sleep(3 * LEASE)
            hold.raise_if_lost()

    harness.run(body)


def test_the_rlock_of_a_thread_that_ended_is_released() -> None:
    with Client(Memory("dead thread")) as client:
        lock = client.rlock("a", lease=6.0)
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        start = time.monotonic()
        with lock:
            assert time.monotonic() - start < 6.0


def test_the_rlock_of_a_task_that_ended_is_released() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        lock = client.rlock("a", lease=LEASE)
        await harness.spawn(lambda: acquire_and_forget(lock)).result()
        start = harness.now()
        async with client.rlock("a", lease=LEASE):
            assert harness.now() - start <= LEASE / 3 + 0.5

    simulate(body)


def test_a_renewal_sent_before_the_grant_does_not_end_it() -> None:
    """The claim's reply and the renewal cross: the renewal was answered before the claim arrived."""

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, events: list[Event]) -> None:
        # the claim travels for longer than a third of the lease; the renewal asked meanwhile finds nothing
        plan.fault, plan.methods = Fault(Kind.DELAY_REQUEST, LEASE / 3 + 0.5), ("try_acquire",)
        job = harness.spawn(client.lock("a", lease=LEASE).acquire)
        await harness.sleep(LEASE / 3 - 0.1)
        plan.fault, plan.methods = Fault(Kind.DELAY_REPLY, 1.0), ("renew",)
        await harness.sleep(1.0)
        hold = await job.result()
        assert hold is not None
        await harness.sleep(1.5)
        hold.raise_if_lost()

    simulate(body)


def test_an_eager_task_factory_does_not_stop_the_watchdog() -> None:
    """An eager task runs its first step inside `create_task`: not while the watchdog's mutex is held."""

    def eager(loop: asyncio.AbstractEventLoop, work: object, **options: object) -> asyncio.Task[None]:
        started = threading.Event()

        def first_step() -> None:
            try:
                work.send(None)  # type: ignore[attr-defined]
            except StopIteration:
                pass
            started.set()

        thread = threading.Thread(target=first_step, daemon=True)
        thread.start()
        assert started.wait(1.0), "the first step hangs: it ran inside the mutex"
        raise AssertionError("the factory was used")

    async def body() -> None:
        async with AsyncClient(Memory("eager")) as client:
            asyncio.get_running_loop().set_task_factory(eager)  # type: ignore[arg-type]
            try:
                client._engine.watchdog.retry_release("a", client._engine.ticket(client.lock("a")._options.terms))
            finally:
                asyncio.get_running_loop().set_task_factory(None)

    asyncio.run(body())


def test_always_plans_every_call() -> None:
    plan = always(Fault(Kind.REFUSE), methods=["renew"])
    assert plan(Call(0, "renew", "a")) == Fault(Kind.REFUSE)
    assert plan(Call(1, "try_acquire", "a")) is None


@pytest.mark.parametrize("seed", range(30))
def test_each_hold_is_renewed_in_time_whatever_tickets_came_and_went_before(seed: int) -> None:
    """The watchdog sleeps by tickets that may be gone when it wakes, and others come meanwhile with shorter leases."""
    harness = SimulatedHarness(seed)

    async def body(_: Harness) -> None:
        client, random = harness.client("memory:"), harness.scheduler.random

        async def one(number: int) -> None:
            for turn in range(12):
                await harness.sleep(random.choice((0.0, 0.01, 1.0, LINGER)) * random.random())
                lease = random.choice((0.5, LEASE, 60.0))
                async with client.lock(f"{number}-{turn}", lease=lease) as hold:
                    await harness.sleep(random.choice((0.0, 0.001, lease / 3, 4 * lease)))
                    hold.raise_if_lost()

        await harness.gather(*(one(number) for number in range(6)))
        assert client._engine.watchdog.leases() == []

    harness.run(body)

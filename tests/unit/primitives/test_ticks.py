"""The ticks of a scheduled job: their identity and order, and what happens when a message is lost or one is late."""

from __future__ import annotations

import inspect
import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost, NameInUse, StoreUnavailable, tick_of
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Faulty, Kind, Plan, nth
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

numbers = itertools.count()


def space() -> Memory:
    return Memory(f"ticks-{next(numbers)}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NOON, NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))),
        (NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        (1_772_366_400, 1_772_366_400.0),
        (10**30, 10**30),
        ("2026-03-01", "2026-03-01"),
    ],
)
def test_equal_ticks_run_once_and_later_ones_after_them(one: Any, other: Any) -> None:
    ran: list[object] = []
    with Client(space()) as client:
        job = client.scheduled("a", at_most=10)
        assert job.run(ran.append, one, tick=one)
        assert not job.run(ran.append, other, tick=other)
        step = "z" if isinstance(one, str) else timedelta(microseconds=1) if isinstance(one, datetime) else 1
        assert job.run(ran.append, "later", tick=one + step)
        assert not job.run(ran.append, one, tick=one)
    assert ran == [one, "later"]


@pytest.mark.parametrize(
    ("tick", "problem"),
    [
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (True, TypeError),
        (b"1", TypeError),
        ("\ud800", ValueError),
    ],
)
def test_what_is_no_tick_is_refused_before_anything_is_sent(tick: Any, problem: type[Exception]) -> None:
    faulty = Faulty(space(), lambda call: None)
    with Client(faulty) as client, pytest.raises(problem):
        client.scheduled("a", at_most=10).run(print, tick=tick)
    assert faulty.calls == []


def test_a_job_without_ticks_and_without_at_least_says_what_it_needs() -> None:
    with Client(space()) as client, pytest.raises(ValueError, match=r"'a' needs tick= in each run, or at_least="):
        client.scheduled("a", at_most=10).run(print)


def test_ticks_of_two_kinds_are_not_compared() -> None:
    with Client(space()) as client:
        job = client.scheduled("a", at_least=10, at_most=10)
        assert job.run(lambda: None, tick=NOON)
        with pytest.raises(NameInUse, match=r"are aware datetimes, the last is '2026-03-01T12.*and this one has none"):
            job.run(lambda: None)
        with pytest.raises(NameInUse, match="and this one is one of numbers; pass ticks of one kind in every instance"):
            job.run(lambda: None, tick=NOON.timestamp())
        assert client.holds() == []


def test_instances_that_pass_ticks_since_today_respect_the_stamp_of_those_that_do_not(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        job = harness.client(space()).scheduled("a", at_least=1.5, at_most=10)
        assert await job.run(lambda: None)
        assert not await job.run(lambda: None, tick=NOON)
        await harness.sleep(1.6)
        assert await job.run(lambda: None, tick=NOON)

    harness.run(body)


def test_a_decorated_function_runs_once_per_tick_and_gets_its_tick() -> None:
    ran: list[object] = []
    with Client(space()) as client:

        @client.scheduled("a", at_most=10)
        def report(region: str, tick: datetime | None = None) -> None:
            """Report."""
            ran.append((region, tick))

        @client.scheduled("b", at_most=10)
        def plain(region: str) -> None:
            ran.append(region)

        assert report("eu", tick=NOON) is True
        assert report("eu", tick=NOON) is False
        assert plain("us", tick=NOON) is True
        assert report.__doc__ == "Report."
    assert ran == [("eu", NOON), "us"]


def test_only_functions_of_its_flavor_are_decorated() -> None:
    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    client = Client(space())
    for wrong in (coroutine, generator, 5):
        with pytest.raises(TypeError):
            client.scheduled("a", at_most=10)(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        AsyncClient(space()).scheduled("a", at_most=10)(lambda: None)  # type: ignore[arg-type,return-value]
    client.close()


def test_a_decorated_coroutine_function_runs_once_per_tick(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        ran: list[object] = []

        async def report(tick: int) -> None:
            ran.append(tick)

        job = harness.client(space()).scheduled("a", at_most=10)(report)
        assert inspect.iscoroutinefunction(job)
        assert [await job(tick=1), await job(tick=1), await job(tick=2)] == [True, False, True]
        assert ran == [1, 2]

    harness.run(body)


# --- how long a run may take ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_most", [7, 30, 31, 40, 45, 60, 100])
def test_a_run_holds_its_lock_until_at_most_and_not_longer(at_most: float) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        start = harness.now()
        with pytest.raises(LeaseLost):
            await client.scheduled("a", at_most=at_most).run(harness.sleep, 2 * at_most, tick=1)
        assert 0.98 * at_most <= harness.now() - start <= at_most
        await harness.sleep(at_most)
        assert await client.scheduled("a", at_most=at_most).run(harness.sleep, 0.97 * at_most, tick=2)

    SimulatedHarness().run(body)


@pytest.mark.parametrize("number", range(3))
def test_a_renewal_that_is_repeated_does_not_end_a_run_early(number: int) -> None:
    """The later renewals are late, too, and the last one must still be sent."""

    async def body(harness: Harness) -> None:
        plan = nth(number, Fault(Kind.DROP_REPLY), method="renew")
        job = harness.client(Faulty(space(), plan)).scheduled("a", at_most=60)
        start = harness.now()
        with pytest.raises(LeaseLost):
            await job.run(harness.sleep, 120, tick=1)
        assert 59 <= harness.now() - start <= 70

    SimulatedHarness().run(body)


# --- a lost request or reply at each step of the protocol -------------------------------------------------------------

STEPS: dict[str, tuple[str, int]] = {
    "the first look": ("compare_and_set", 0),
    "the acquire": ("try_acquire", 0),
    "the look under the lock": ("compare_and_set", 1),
    "the stamp": ("compare_and_set", 2),
    "the release": ("release", 0),
}


MESSAGES = [(step, kind) for step in STEPS for kind in (Kind.DROP_REQUEST, Kind.DROP_REPLY, Kind.DUPLICATE)]
MESSAGES.remove(("the release", Kind.DUPLICATE))  # the second answer would say that the lease is gone


@pytest.mark.parametrize(("step", "kind"), MESSAGES)
def test_a_message_that_is_lost_once_is_repeated(harness: Harness, step: str, kind: Kind) -> None:
    """One run, whichever message is lost, and the tick is known to all."""
    method, number = STEPS[step]

    async def body(harness: Harness) -> None:
        memory, ran = space(), list[int]()
        client = harness.client(Faulty(memory, nth(number, Fault(kind), method=method)), response_timeout=1.0)
        assert await client.scheduled("a", at_most=10).run(lambda: ran.append(1), tick=1)
        other = harness.client(memory).scheduled("a", at_most=10)
        assert not await other.run(lambda: ran.append(2), tick=1)
        assert await other.run(lambda: ran.append(3), tick=2)
        assert ran == [1, 3]

    harness.run(body)


def lost_from(method: str, number: int, kind: Kind) -> Plan:
    """Lose every message of a method from one of its calls on."""
    met = itertools.count()
    return lambda call: Fault(kind) if call.method == method and next(met) >= number else None


@pytest.mark.parametrize("step", [step for step in STEPS if step != "the release"])
@pytest.mark.parametrize("kind", [Kind.DROP_REQUEST, Kind.DROP_REPLY])
def test_a_step_without_any_answer_runs_nothing_here(harness: Harness, step: str, kind: Kind) -> None:
    """Then the tick was not run, or never will be: another instance runs it at most once."""
    method, number = STEPS[step]

    async def body(harness: Harness) -> None:
        memory, ran = space(), list[int]()
        client = harness.client(Faulty(memory, lost_from(method, number, kind)), response_timeout=0.3)
        with pytest.raises(StoreUnavailable):
            await client.scheduled("a", at_most=1.6).run(lambda: ran.append(1), tick=1)
        await harness.sleep(2.0)
        other = harness.client(memory).scheduled("a", at_most=10)
        written = step == "the stamp" and kind is Kind.DROP_REPLY
        assert await other.run(lambda: ran.append(2), tick=1) is not written
        assert ran == ([] if written else [2])

    harness.run(body)


def test_one_that_falls_asleep_before_its_stamp_does_not_run_what_others_ran_meanwhile(harness: Harness) -> None:
    """Others ran this tick and the next; its late write is refused by its token."""

    async def body(harness: Harness) -> None:
        memory, ran = space(), list[str]()
        slow = harness.client(Faulty(memory, nth(2, Fault(Kind.DELAY_REQUEST, 3.0), method="compare_and_set")))
        job = harness.spawn(lambda: slow.scheduled("a", at_most=1.0).run(lambda: ran.append("slow"), tick=1))
        await harness.sleep(1.5)
        other = harness.client(memory).scheduled("a", at_most=10)
        assert await other.run(lambda: ran.append("first"), tick=1)
        assert await other.run(lambda: ran.append("second"), tick=2)
        with pytest.raises(Exception, match=r"too late|lost|expired"):
            await job.result()
        assert ran == ["first", "second"]
        assert not await other.run(lambda: ran.append("again"), tick=2)

    harness.run(body)


# --- the tick of an interval ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "now", "tick"),
    [
        (300, NOON + timedelta(seconds=1), NOON),
        (300, NOON + timedelta(seconds=298.9), NOON),
        (300, NOON + timedelta(seconds=299.2), NOON + timedelta(minutes=5)),  # a timer that is early
        (timedelta(days=1), NOON, NOON.replace(hour=0)),
        (1, NOON - timedelta(seconds=0.05), NOON),
        (1, NOON - timedelta(seconds=0.15), NOON - timedelta(seconds=1)),
        (300, (NOON + timedelta(seconds=9)).timestamp(), NOON),
        (300, (NOON + timedelta(seconds=9)).astimezone(timezone(timedelta(hours=-3))), NOON),
    ],
)
def test_the_tick_of_an_interval(interval: Any, now: Any, tick: datetime) -> None:
    assert tick_of(interval, now) == tick
    assert tick_of(interval, tick) == tick


def test_the_tick_of_the_present() -> None:
    before = datetime.now(UTC)
    tick = tick_of(60)
    assert before - timedelta(seconds=60) < tick <= datetime.now(UTC) + timedelta(seconds=1)
    assert (tick.second, tick.microsecond, tick.utcoffset()) == (0, 0, timedelta(0))


def test_a_time_without_a_zone_has_no_tick() -> None:
    with pytest.raises(ValueError, match="must have a time zone"):
        tick_of(60, NOON.replace(tzinfo=None))
    with pytest.raises(ValueError, match="interval must be above zero"):
        tick_of(0)

"""Events about the store, for observers that want them; bare figures of acquires and releases; several observers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient, StoreUnavailable
from leasehold.events import (
    Acquired,
    Event,
    GaveUp,
    Lost,
    Queued,
    Reconnected,
    Released,
    Renewed,
    RenewedLate,
    RequestFailed,
)
from leasehold.observability.combined import Combined
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.flavors import both

LEASE = 9.0

OF_THE_STORE = RequestFailed, Reconnected, RenewedLate


class Noting:
    """An observer that notes what it wants, and all figures."""

    def __init__(self, *wanted: type[Event]) -> None:
        self.wanted = wanted
        self.asked: list[type[Event]] = []
        self.events: list[Event] = []
        self.figures: list[tuple[object, ...]] = []

    def wants(self, kind: type[Event]) -> bool:
        self.asked.append(kind)
        return kind in self.wanted

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def acquired(self, name: str, waited: float, queued: bool) -> None:
        self.figures.append(("acquired", name, queued))

    def released(self, name: str, held: float) -> None:
        self.figures.append(("released", name))

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


class Plan:
    fault: Fault | None = None

    def __call__(self, call: Call) -> Fault | None:
        return self.fault if call.method in ("try_acquire", "release", "renew", "wait") else None


def simulate(observer: Any, body: Callable[[SimulatedHarness, AsyncClient, Plan], Coroutine[Any, Any, None]]) -> None:
    harness, plan = SimulatedHarness(), Plan()

    async def run(_: Harness) -> None:
        await body(harness, harness.client(Faulty(Memory(), plan), observer=observer), plan)

    harness.run(run)


def test_a_failed_request_and_the_first_answer_after_it_are_events() -> None:
    noted = Noting(*OF_THE_STORE)

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan) -> None:
        plan.fault = Fault(Kind.REFUSE)
        with pytest.raises(StoreUnavailable):
            await client.lock("a").acquire(timeout=0)
        plan.fault = None
        await harness.sleep(5)
        for _ in range(2):
            async with client.lock("a"):
                pass

    simulate(noted, body)
    failed, back = noted.events
    assert isinstance(failed, RequestFailed)
    assert isinstance(back, Reconnected)
    assert (failed.name, failed.request, back.after) == ("a", "acquire", pytest.approx(5, abs=1.5))
    assert isinstance(failed.error, StoreUnavailable)
    assert failed.error.__traceback__ is None, "an event that is kept must not keep the frames of the acquire"


def test_renewals_and_releases_fail_as_events_too() -> None:
    noted = Noting(*OF_THE_STORE)

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan) -> None:
        async with client.lock("a", lease=LEASE):
            plan.fault = Fault(Kind.REFUSE)
            await harness.sleep(LEASE / 2)
            plan.fault = None
            await harness.sleep(LEASE)
            plan.fault = Fault(Kind.DROP_REQUEST)

    simulate(noted, body)
    requests = [event.request for event in noted.events if isinstance(event, RequestFailed)]
    assert requests[0] == "renew"
    assert requests[-1] == "release"
    assert noted.kinds().count("Reconnected") == 1


def test_a_renewal_that_takes_most_of_the_lease_is_late() -> None:
    noted = Noting(*OF_THE_STORE, Renewed)

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan) -> None:
        async with client.lock("a", lease=LEASE):
            await harness.sleep(2.2 * LEASE)
            assert not noted.events, "renewals in time"
            plan.fault = Fault(Kind.REFUSE)
            await harness.sleep(LEASE / 2)
            plan.fault = None
            await harness.sleep(LEASE)

    simulate(noted, body)
    late = next(event for event in noted.events if isinstance(event, RenewedLate))
    assert 0 < late.remaining < LEASE / 3
    assert {*noted.kinds()} == {"RequestFailed", "Reconnected", "Renewed", "RenewedLate"}
    assert noted.kinds().count("RenewedLate") == 1


def test_an_observer_that_does_not_say_what_it_wants_gets_the_life_of_holds_alone() -> None:
    events = list[Event]()

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan) -> None:
        async with client.lock("a", lease=LEASE):
            plan.fault = Fault(Kind.REFUSE)
            await harness.sleep(LEASE * 0.7)
            plan.fault = None
            await harness.sleep(LEASE)

    simulate(events.append, body)
    assert [type(event).__name__ for event in events] == ["Acquired", "InDoubt", "Renewed", "Released"]


@both
def test_each_acquire_and_release_is_counted_by_bare_figures(harness: Harness) -> None:
    noted = Noting()

    async def body(harness: Harness) -> None:
        client = harness.client(observer=noted)
        async with client.lock("a"), client.multi_lock(["b", "c"]):
            assert await client.lock("a").acquire(timeout=0.01) is None

    harness.run(body)
    assert sorted(noted.figures) == [
        *[("acquired", name, False) for name in ("a", "b", "c")],
        *[("released", name) for name in ("a", "b", "c")],
    ]
    assert noted.events == []
    assert len(noted.asked) == len(set(noted.asked)), "it is asked once for each class"


@both
def test_the_end_of_a_wait_says_that_it_was_one(harness: Harness) -> None:
    noted, other = Noting(Queued, Acquired, GaveUp, Lost), Noting()
    space = Memory("queued")

    async def body(harness: Harness) -> None:
        client, holder = harness.client(space, observer=noted), harness.client(space, observer=other)
        hold = await holder.lock("a").acquire()
        assert hold is not None
        assert await client.lock("a").acquire(timeout=0.01) is None
        await harness.gather(client.lock("a").acquire(), later(hold))
        await client.close()

    async def later(hold: Any) -> None:
        await harness.sleep(0.05)
        await hold.release()

    harness.run(body)
    queued = [getattr(event, "queued", None) for event in noted.events]
    assert noted.kinds() == ["Queued", "GaveUp", "Queued", "Acquired", "Lost"]
    assert queued == [None, True, None, True, None]
    assert isinstance(lost := noted.events[-1], Lost)
    assert 0 <= lost.held < 60
    assert noted.figures == [("acquired", "a", True)]


@both
def test_the_close_of_a_client_ends_its_waits(harness: Harness) -> None:
    """Else a gauge of waiters would count them for ever."""
    noted = Noting(Queued, GaveUp)
    space = Memory("closing")

    async def body(harness: Harness) -> None:
        client, holder = harness.client(space, observer=noted), harness.client(space)
        assert await holder.lock("a").acquire() is not None

        async def wait() -> None:
            with pytest.raises(RuntimeError, match="closed"):
                await client.lock("a").acquire()

        async def close() -> None:
            while not noted.events:
                await harness.sleep(0.01)
            await client.close()

        await harness.gather(wait(), close())

    harness.run(body)
    assert noted.kinds() == ["Queued", "GaveUp"]


@both
def test_observers_combined_get_each_what_it_wants(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: Event) -> None:
        raise ZeroDivisionError

    plain, first, second = list[Event](), Noting(Acquired), Noting(Released)

    async def body(harness: Harness) -> None:
        async with harness.client(observer=Combined(failing, first, plain.append, second)).lock("a"):
            pass

    harness.run(body)
    assert first.kinds() == ["Acquired"]
    assert second.kinds() == ["Released"]
    assert [type(event).__name__ for event in plain] == ["Acquired", "Released"]
    assert first.figures == second.figures == [("acquired", "a", False), ("released", "a")]
    assert caplog.text.count("an observer failed") == 2


@both
def test_a_tally_that_fails_is_logged_and_changes_nothing(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Noting):
        def acquired(self, name: str, waited: float, queued: bool) -> None:
            raise ZeroDivisionError

        def released(self, name: str, held: float) -> None:
            raise ZeroDivisionError

    async def body(harness: Harness) -> None:
        async with harness.client(observer=Failing()).lock("a"):
            pass

    harness.run(body)
    assert caplog.text.count("an observer failed") == 2

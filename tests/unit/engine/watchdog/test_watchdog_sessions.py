"""The watchdog on a store whose sessions are shorter than leases, and which reports losses by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from engine_cases.watchdogs import DEAD, LEASE, Switch, engine

from leasehold import LeaseLost
from leasehold._model import Granted, RenewalResult, Ticket, Wait
from leasehold._runtimes.base import Runtime
from leasehold.client import AsyncClient
from leasehold.events import Event, Lost
from leasehold.store_api import LossCallback, Store
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Faulty, FaultyStore
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness


class Brief:
    """A store whose sessions are shorter than the leases that are asked for, and that reports the losses it notices."""

    LENGTH = 3.0

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.callback: LossCallback | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        answer = await self._inner.try_acquire(name, ticket, join=join, within=within)
        return answer._replace(lease=self.LENGTH) if isinstance(answer, Granted) else answer

    def report_losses(self, callback: LossCallback) -> None:
        self.callback = callback


class BriefFaulty(Faulty):
    """Opens a `Brief` around what a `Faulty` opens."""

    def open(self, runtime: Runtime, namespace: str) -> FaultyStore:
        return cast("FaultyStore", Brief(super().open(runtime, namespace)))


def briefly(body: Callable[[SimulatedHarness, AsyncClient, Switch, Brief, list[Event]], Awaitable[None]]) -> None:
    harness, plan, events = SimulatedHarness(), Switch(), list[Event]()

    async def run(_: Harness) -> None:
        plan.now = harness.now
        client = harness.client(BriefFaulty(Memory(), plan), observer=events.append)
        await body(harness, client, plan, cast("Brief", client.store), events)

    harness.run(run)


def test_who_was_granted_less_than_asked_is_renewed_in_time() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, _: Brief, events: list[Event]) -> None:
        renewed, fixed = client.lock("a", lease=LEASE), client.lock("b", lease=LEASE, renew=False)
        start = harness.now()
        kept = await renewed.acquire()
        ends = await fixed.acquire()
        assert kept is not None
        assert ends is not None
        await harness.sleep(LEASE * 0.9)
        ends.raise_if_lost()
        await harness.sleep(LEASE * 0.1)
        assert ends.lost
        kept.raise_if_lost()
        assert plan.times("renew")[0] - start < Brief.LENGTH / 2
        await kept.release()

    briefly(body)


@pytest.mark.parametrize("length", [3.0, 1.5 * LEASE], ids=["a shorter lease", "a longer lease"])
def test_a_cap_on_the_renewals_ends_a_hold_when_it_says(monkeypatch: pytest.MonkeyPatch, length: float) -> None:
    """Whatever length is granted: after ``max_hold`` and the lease that was requested, or up to a renewal earlier."""
    monkeypatch.setattr(Brief, "LENGTH", length)

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, _: Brief, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE, max_hold=2 * LEASE).acquire()
        assert hold is not None
        start, lost = harness.now(), list[float]()
        hold.on_lost(lambda error: lost.append(harness.now() - start))
        await harness.sleep(5 * LEASE)
        assert 3 * LEASE - length / 2 <= lost[0] <= 3 * LEASE

    briefly(body)


def test_a_scheduled_run_lasts_as_long_as_it_may() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Switch, _: Brief, events: list[Event]) -> None:
        assert await client.scheduled("a", at_most=60).run(harness.sleep, 59, tick=0)
        start = harness.now()
        with pytest.raises(LeaseLost):
            await client.scheduled("a", at_most=60).run(harness.sleep, 100, tick=1)
        assert 59 <= harness.now() - start <= 70

    briefly(body)


def test_what_a_store_hears_by_itself_is_told_at_once() -> None:
    async def body(
        harness: SimulatedHarness, client: AsyncClient, plan: Switch, store: Brief, events: list[Event]
    ) -> None:
        first, second = await client.lock("a").acquire(), await client.lock("b").acquire()
        assert first is not None
        assert second is not None
        assert store.callback is not None
        plan.fault = DEAD
        store.callback(RenewalResult.UNKNOWN, None)
        await harness.sleep(0.01)
        assert [type(event).__name__ for event in events[2:]] == ["InDoubt", "InDoubt"]
        assert plan.times("renew"), "a lease in doubt is renewed at once"
        plan.fault = None
        lost = engine(client).watchdog.leases()[0]
        store.callback(RenewalResult.GONE, [lost.ticket.id])
        await harness.sleep(0.01)
        assert isinstance(events[-1], Lost)
        assert (first.lost, second.lost) == (True, False)
        await second.release()

    briefly(body)

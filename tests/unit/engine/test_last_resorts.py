"""What hardly ever happens to a hold: a store that does not know, that breaks its word, and no thread to be had."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from leasehold import Client, LeaseLost, StoreUnavailable
from leasehold._engine.closing import CLOSE_WITHIN
from leasehold._model import Granted, RenewalResult, Ticket, Wait
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.flavors import both
from support.patience import until_in

LEASE = 1.6


def core_of(client: Any) -> Any:
    return client.blocking._core if hasattr(client, "blocking") else client


def answering(monkeypatch: pytest.MonkeyPatch, client: Any, result: RenewalResult | Exception) -> list[int]:
    """Let the store answer each renewal so; return how many tickets each renewal had."""
    asked = list[int]()

    async def renew(tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        asked.append(len(tickets))
        if isinstance(result, Exception):
            raise result
        return [result] * len(tickets)

    monkeypatch.setattr(core_of(client).store, "renew", renew)
    return asked


@both
def test_a_renewal_with_an_unknown_result_leaves_the_hold_as_it_was(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client()
        hold = await client.lock("a", lease=30.0).acquire()
        assert hold is not None
        before = hold.remaining
        answering(monkeypatch, client, RenewalResult.UNKNOWN)
        with pytest.raises(StoreUnavailable, match="did not confirm the renewal of 'a'") as caught:
            await hold.renew()
        assert caught.value.unknown
        hold.raise_if_lost()
        assert hold.remaining <= before
        await hold.release()

    harness.run(body)


@both
def test_renewing_a_lease_that_the_store_no_longer_knows_raises_lease_lost(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        client, told = harness.client(), list[LeaseLost]()
        hold = await client.lock(f"lost in {harness}", lease=30.0).acquire()  # kept by the store, which all tests have
        assert hold is not None
        hold.on_lost(told.append)
        answering(monkeypatch, client, RenewalResult.GONE)
        for _ in range(2):
            with pytest.raises(LeaseLost, match="no longer knows it"):
                await hold.renew()
        assert len(told) == 1
        assert hold.lost

    harness.run(body)


@both
def test_several_of_which_one_is_lost_are_not_extended(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client()
        hold = await client.multi_lock(["a", "b"], lease=30.0).acquire()
        assert hold is not None
        await hold.renew()
        found = await client.inspect("b")
        assert found is not None
        token = found.token
        assert token is not None
        assert await client.force_release("b", token)
        with pytest.raises(LeaseLost):
            await hold.renew()
        with pytest.raises(LeaseLost):
            hold.raise_if_lost()

    harness.run(body)


@both
def test_a_store_that_breaks_the_protocol_puts_holds_in_doubt_until_their_deadline(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client()
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        asked = answering(monkeypatch, client, ZeroDivisionError("a mistake of the store"))
        begin, lost = harness.now(), harness.event()
        hold.on_lost(lambda _: lost.set())
        await harness.sleep(LEASE / 2)
        hold.raise_if_lost()  # in doubt, and held
        assert await lost.wait(LEASE)
        assert harness.now() - begin < LEASE + 0.2
        assert len(asked) > 2, "it is tried again"

    with caplog.at_level(logging.ERROR, "leasehold"):
        harness.run(body)
    assert "a batch of renewals failed" in caplog.text


@both
def test_without_a_thread_for_renewals_holds_are_in_doubt_until_there_is_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client()
        hold = await client.lock("a", lease=3 * LEASE).acquire()  # a busy machine may be late by more than one
        assert hold is not None
        runtime = core_of(client)._engine.runtime
        spawn, refused = runtime.spawn_loop, list[str]()

        def no_thread(work: Any, name: str) -> Any:
            if name == "leasehold-renew" and len(refused) < 3:
                refused.append(name)
                raise RuntimeError("can't start new thread")
            return spawn(work, name)

        monkeypatch.setattr(runtime, "spawn_loop", no_thread)
        await until_in(harness, lambda: len(refused) == 3)
        left = hold.remaining
        await until_in(harness, lambda: hold.remaining > left)  # there is a thread now: it is renewed
        hold.raise_if_lost()
        await hold.release()

    harness.run(body)


class Leaves:
    """Stands between a client and its store: refuses or breaks the first leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: Any, *errors: Exception) -> None:
        store, self.errors = core_of(client).store, list(errors)
        release = store.release

        async def left(*args: Any, **options: Any) -> bool:
            if self.errors:
                raise self.errors.pop(0)
            found: bool = await release(*args, **options)
            return found

        monkeypatch.setattr(store, "release", left)


async def released(harness: Harness, looker: Any, within: float) -> bool:
    until = harness.now() + within
    while await looker.inspect("a") is not None:
        if harness.now() > until:
            return False
        await harness.sleep(0.02)
    return True


@both
def test_a_late_release_is_sent_when_a_thread_can_be_started_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        client, looker = harness.client(), harness.client()
        hold = await client.lock("a", lease=30.0).acquire()
        assert hold is not None
        runtime, refused = core_of(client)._engine.runtime, list[str]()
        spawn = runtime.spawn_loop

        def no_thread(work: Any, name: str) -> Any:
            if name == "leasehold-release" and len(refused) < 3:
                refused.append(name)
                raise RuntimeError("can't start new thread")
            return spawn(work, name)

        monkeypatch.setattr(runtime, "spawn_loop", no_thread)
        Leaves(monkeypatch, client, StoreUnavailable("refused"))
        assert not await hold.release()
        assert await released(harness, looker, 5.0)
        assert len(refused) == 3

    harness.run(body)


@both
def test_a_late_release_that_fails_is_logged_and_sent_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(harness: Harness) -> None:
        client, looker = harness.client(), harness.client()
        hold = await client.lock("a", lease=10.0).acquire()
        assert hold is not None
        Leaves(monkeypatch, client, StoreUnavailable("refused"), ZeroDivisionError("a mistake of the store"))
        assert not await hold.release()
        assert await released(harness, looker, 5.0)

    with caplog.at_level(logging.ERROR, "leasehold"):
        harness.run(body)
    assert "a late release of 'a' failed" in caplog.text


def test_a_close_waits_for_pending_releases_within_its_time_only() -> None:
    async def body(harness: Harness) -> None:
        silent = [False]
        plan = Fault(Kind.DROP_REQUEST, 60.0)
        client = harness.client(Faulty(Memory(), lambda call: plan if silent[0] and call.method == "release" else None))
        holds = [await client.lock(f"{number}", lease=30.0).acquire() for number in range(10)]
        silent[0] = True
        await harness.gather(*(hold.release() for hold in holds if hold is not None))
        start = harness.now()
        await client.close()
        assert harness.now() - start < CLOSE_WITHIN + 1.5

    SimulatedHarness().run(body)


@both
def test_who_is_granted_less_than_it_asked_for_is_renewed_in_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a store whose sessions are shorter: the watchdog had put it down for a third of the longer lease."""

    async def body(harness: Harness) -> None:
        client = harness.client()
        store = core_of(client).store
        claim, renew, renewed = store.try_acquire, store.renew, list[float]()

        async def brief(*args: Any, **options: Any) -> Granted | Wait:
            answer: Granted | Wait = await claim(*args, **options)
            return answer._replace(lease=LEASE) if isinstance(answer, Granted) else answer

        async def counted(*args: Any, **options: Any) -> Sequence[RenewalResult]:
            renewed.append(harness.now())
            found: Sequence[RenewalResult] = await renew(*args, **options)
            return found

        monkeypatch.setattr(store, "try_acquire", brief)
        monkeypatch.setattr(store, "renew", counted)
        hold = await client.lock("a", lease=30.0).acquire()
        assert hold is not None
        assert hold.remaining < LEASE
        await harness.sleep(2 * LEASE)
        hold.raise_if_lost()
        assert len(renewed) >= 3
        await hold.release()

    harness.run(body)


def test_a_loss_is_told_though_the_next_renewals_of_its_batch_cannot_be_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the watchdog's thread has ended, and no other can be started."""

    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with Client(Memory("not scheduled")) as client:
        hold, told = client.lock("a").acquire(), list[LeaseLost]()
        assert hold is not None
        hold.on_lost(told.append)
        engine = client._core._engine
        renewer = engine.watchdog._renewer
        monkeypatch.setattr(renewer, "_renewed", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            renewer._apply([hold._core._lease], [RenewalResult.GONE], engine.runtime.now(), None)
        assert len(told) == 1

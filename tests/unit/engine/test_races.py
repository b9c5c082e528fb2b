"""What may happen between two steps of the watchdog, its backup thread and a release: made to happen there."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.lease_states import State
from leasehold._engine.watchdog.backup_thread import BackupThread
from leasehold._engine.watchdog.watchdog import Watchdog
from leasehold._model import AcquireRequest, RenewalResult
from leasehold._runtimes.base import Job, finish
from leasehold._runtimes.blocking import BlockingRuntime, ThreadSignal
from leasehold.stores.memory import Memory
from leasehold_lab.conformance.case_context import LASTING
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.failing_log import FailingLog
from support.flavors import both
from support.patience import until_in

LEASE = 9.0
SOON = 10.0


def simulate(body: Callable[[SimulatedHarness, AsyncClient], Any]) -> None:
    harness = SimulatedHarness()

    async def run(_: Harness) -> None:
        await body(harness, harness.client(Memory()))

    harness.run(run)


class Between(dict[Lease, float]):
    """The watchdog's fresh tickets; something happens as soon as it has seen that there are some."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens = happens

    def copy(self) -> dict[Lease, float]:
        found = super().copy()
        if found:
            self.happens()
        return found


def test_a_ticket_released_while_it_gets_its_timers_is_not_watched() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        watchdog, seen = client._engine.watchdog, list[Lease]()

        def leave() -> None:
            seen.append(next(iter(watchdog._timers.fresh)))
            watchdog.forget(seen[-1])

        watchdog._timers.fresh = Between(leave)
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        await harness.sleep(LEASE / 2)
        assert seen == [hold._lease]
        assert watchdog.leases() == [], "what was forgotten just then is looked after no more"
        await hold.release()

    simulate(body)


def test_a_ticket_registered_while_the_watchdog_plans_its_sleep_gets_its_timers_at_once() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        watchdog, came = client._engine.watchdog, list[LeaseHandle]()
        queues = watchdog._queues

        def meanwhile() -> Any:
            if not came:
                came.append(client._engine.lease(AcquireRequest("b", client.lock("b")._options.terms)))
                watchdog._timers.fresh[came[0].lease] = harness.now() + LEASE
            return queues()

        watchdog._queues = meanwhile  # type: ignore[method-assign]
        async with client.lock("a", lease=LEASE):
            await harness.sleep(0.1)
            assert came[0].lease in watchdog._timers.watched
            watchdog.forget(came[0].lease)

    simulate(body)


def test_a_hold_released_while_the_watchdog_finds_it_dropped_is_not_released_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None

        class GoneAndReleased:
            def drop_ended_callers(self) -> None:
                hold._lease.begin_release()
                hold._handle = None

        gone = GoneAndReleased()
        hold._lease.lock_object = weakref.ref(gone)
        await harness.sleep(LEASE / 2)
        assert hold._lease.state is State.RELEASED
        assert len(client._engine.watchdog._pending) == 0, "the call that ended it releases"

    with caplog.at_level(logging.WARNING, "leasehold"):
        simulate(body)
    assert "never released" not in caplog.text


def test_a_fixed_lease_in_doubt_is_not_renewed_and_ends_at_its_deadline() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient) -> None:
        hold = await client.lock("a", lease=LEASE, renew=False).acquire()
        assert hold is not None
        deadline = hold._lease.deadline
        client._engine.watchdog.on_report(RenewalResult.UNKNOWN, None)
        await harness.sleep(LEASE / 2)
        assert hold._lease.state is State.IN_DOUBT
        hold.raise_if_lost()
        lost = list[float]()
        hold.on_lost(lambda _: lost.append(harness.now()))
        await harness.sleep(LEASE)
        assert lost == [pytest.approx(deadline, abs=1e-6)]

    simulate(body)


@both
def test_a_failed_check_of_the_watchdog_loses_no_timer(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails as it gives up a dropped hold, while other timers are due and a release is pending."""
    release = Watchdog._release_abandoned

    def fails(self: Watchdog, *args: Any) -> None:
        release(self, *args)
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(Watchdog, "_release_abandoned", fails)

    async def body(harness: Harness) -> None:
        client, looker = harness.client(), harness.client()
        kept = [await client.lock(f"kept {number}", lease=LASTING).acquire() for number in range(3)]
        lost = await client.lock("lost", lease=LASTING, renew=False).acquire()
        assert lost is not None
        await client.lock("dropped", lease=LASTING).acquire()
        told = list[LeaseLost]()
        lost.on_lost(told.append)
        await harness.sleep(2.5 * LASTING)
        for hold in kept:
            assert hold is not None
            hold.raise_if_lost()
            await hold.release()
        assert len(told) == 1
        assert await looker.inspect("dropped") is None

    harness.run(body)
    assert "a check of the leases failed; the watchdog continues" in caplog.text


@both
def test_a_holder_is_notified_even_if_its_loss_cannot_be_logged(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(harness: Harness) -> None:
        told = list[LeaseLost]()
        hold = await harness.client().lock("a", lease=0.2, renew=False).acquire()
        assert hold is not None
        hold.on_lost(told.append)
        await until_in(harness, lambda: told)
        await harness.sleep(0.2)
        assert len(told) == 1

    def fail(message: str) -> None:
        raise ZeroDivisionError(message)

    with FailingLog(fail, ": lost: ") as log:
        harness.run(body)
    assert f"ZeroDivisionError: {log.messages[0]}" in capsys.readouterr().err, "and the failure is shown"


def test_two_threads_that_release_a_hold_at_once_release_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both, results = threading.Barrier(2, timeout=SOON), list[bool]()
    with Client(Memory("both")) as client:
        hold = client.lock("a").acquire()
        assert hold is not None
        begin, left = client._core._engine.begin_release, list[Lease]()

        def begin_release(lease: Lease) -> bool:
            left.append(lease)
            return begin(lease)

        monkeypatch.setattr(client._core._engine, "begin_release", begin_release)
        monkeypatch.setattr(client._core._engine.runtime, "before_blocking", both.wait)
        threads = [threading.Thread(target=lambda: results.append(hold.release())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        monkeypatch.undo()
        assert results == [True, True]
        assert len(left) == 1


def test_an_acquire_that_ends_as_its_client_is_closed_is_not_waited_for() -> None:
    client = Client(Memory("ends just now"))
    engine = client._core._engine

    class Ending(ThreadSignal):
        """The last attempt ends after it was seen, and before it is waited for."""

        def clear(self) -> None:
            super().clear()
            engine.attempts.clear()

    engine.attempts[object()] = None
    engine.ended = Ending()
    start = engine.runtime.now()
    client.close()
    assert engine.runtime.now() - start < 1.0


def test_a_holder_may_close_its_client_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold._engine.watchdog.backup_thread.PATIENCE", SOON)  # no thread takes over meanwhile
    client, closed = Client(Memory("closed when told")), threading.Event()
    hold = client.lock("a", lease=0.2, renew=False).acquire()
    assert hold is not None
    job = client._core._engine.watchdog._job
    assert job is not None

    def close(error: LeaseLost) -> None:
        client.close()
        closed.set()

    hold.on_lost(close)
    assert closed.wait(SOON)
    assert finish(job.join(SOON)), "its thread ends"


# --- the backup thread ------------------------------------------------------------------------------------------------


class JustOver(ThreadSignal):
    """A flag that comes at the moment when patience ends: who waited saw none, and finds that it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = threading.Event()
        self.backup_thread: BackupThread | None = None

    async def wait(self, timeout: float | None) -> bool:
        assert self.backup_thread is not None
        calling, _ = self.backup_thread._round
        self.waited_for.set()
        while calling:
            time.sleep(0.0001)  # noqa: ASYNC251 it is a thread that waits
        return False


def test_callbacks_that_end_with_the_patience_keep_the_schedule() -> None:
    taken = list[Job]()

    async def take_over(job: Job) -> None:
        taken.append(job)

    runtime, over = BlockingRuntime(), JustOver()
    backup_thread = over.backup_thread = BackupThread(runtime, take_over)
    runtime.signal = lambda: over  # type: ignore[method-assign]
    for _ in range(20):
        over.waited_for.clear()
        assert backup_thread.call([lambda: over.waited_for.wait(SOON) and None])
    finish(backup_thread.close(SOON))
    assert taken == []


@pytest.mark.parametrize("times", [1, 1000], ids=["once", "for ever"])
def test_callbacks_are_made_even_if_no_backup_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    spawn, refused = BlockingRuntime.spawn, list[str]()

    def no_thread(self: BlockingRuntime, work: Any, name: str) -> Job:
        if name == "leasehold-backup" and len(refused) < times:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return spawn(self, work, name)

    monkeypatch.setattr(BlockingRuntime, "spawn", no_thread)
    told = threading.Event()
    with Client(Memory("no thread")) as client:
        for _ in range(2):
            hold = client.lock("a", lease=0.2, renew=False).acquire()
            assert hold is not None
            told.clear()
            hold.on_lost(lambda _: told.set())
            assert told.wait(SOON)
            with pytest.raises(LeaseLost):
                hold.release()
    assert refused


def test_a_client_that_is_closed_as_another_thread_takes_over_the_schedule_ends_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The holder that is called back takes its time; the watchdog is closed before another goes on in its place."""
    called, closing, go_on = threading.Event(), threading.Event(), threading.Event()
    take_over, close = Watchdog._take_over, BackupThread.close

    async def taken_over_late(self: Watchdog, job: Job) -> None:
        closing.wait(SOON)
        await take_over(self, job)
        go_on.set()

    async def closed_meanwhile(self: BackupThread, within: float) -> None:
        closing.set()
        go_on.wait(SOON)
        await close(self, within)

    def stay(error: LeaseLost) -> None:
        called.set()
        go_on.wait(SOON)

    monkeypatch.setattr(Watchdog, "_take_over", taken_over_late)
    monkeypatch.setattr(BackupThread, "close", closed_meanwhile)
    client = Client(Memory("closing"))
    hold = client.lock("a", lease=1.0, renew=False).acquire()
    assert hold is not None
    hold.on_lost(stay)
    assert called.wait(SOON)
    client.close()
    assert go_on.is_set(), "no thread waited in vain"

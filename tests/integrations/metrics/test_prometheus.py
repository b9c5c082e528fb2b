"""The figures that Prometheus gets, in both flavors, over a fork, and from several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.observability import prometheus
from leasehold.observability._figures import WAITING
from leasehold.observability.prometheus import PrometheusObserver
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.flavors import both

LEASE = 9.0


class Scrape:
    """An observer and its registry."""

    def __init__(self, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry, **options)

    def __call__(self, name: str, lock: str = "order:*") -> float | None:
        return self.registry.get_sample_value(f"leasehold_{name}", {"lock": lock})

    def text(self) -> str:
        return generate_latest(self.registry).decode()


@both
def test_acquires_holds_and_waits_are_measured(harness: Harness) -> None:
    scrape, space = Scrape(), Memory("measured")

    async def body(harness: Harness) -> None:
        client, other = harness.client(space, observer=scrape.observer), harness.client(space)
        async with client.lock("order:1"):
            assert (scrape("locks_held"), scrape("locks_acquired_total")) == (1, 1)
            assert await client.lock("order:1").acquire(timeout=0.01) is None
        assert (scrape("locks_held"), scrape("lock_hold_duration_seconds_count")) == (0, 1)
        assert (scrape("lock_timeouts_total"), scrape("lock_failures_total")) == (1, 0)
        hold = await other.lock("order:2").acquire()
        assert hold is not None

        async def release() -> None:
            while scrape("locks_waiting") != 1:
                await harness.sleep(0.01)
            await hold.release()

        async def acquire() -> None:
            async with client.lock("order:2"):
                assert scrape("locks_waiting") == 0

        await harness.gather(acquire(), release())

    harness.run(body)
    assert scrape("lock_acquire_duration_seconds_count") == scrape("locks_acquired_total") == 2
    assert scrape("lock_acquire_duration_seconds_sum") > 0  # type: ignore[operator]
    assert scrape("locks_held") == 0


@both
def test_the_close_of_a_client_leaves_the_gauges_at_zero(harness: Harness) -> None:
    scrape, space = Scrape(), Memory("closed")

    async def body(harness: Harness) -> None:
        client = harness.client(space, observer=scrape.observer)
        assert await client.lock("order:1").acquire() is not None

        async def wait() -> None:
            with pytest.raises(RuntimeError):
                await client.lock("order:1").acquire()

        async def close() -> None:
            while scrape("locks_waiting") != 1:
                await harness.sleep(0.01)
            await client.close()

        await harness.gather(wait(), close())

    harness.run(body)
    assert (scrape("locks_held"), scrape("locks_waiting"), scrape("locks_lost_total")) == (0, 0, 1)


class Plan:
    fault: Fault | None = None

    def __call__(self, call: Call) -> Fault | None:
        return self.fault if call.method in ("try_acquire", "release", "renew") else None


def simulate(body: Callable[[SimulatedHarness, AsyncClient, Plan, Scrape], Coroutine[Any, Any, None]]) -> Scrape:
    harness, plan, scrape = SimulatedHarness(), Plan(), Scrape()

    async def run(_: Harness) -> None:
        client = harness.client(Faulty(Memory(), plan), observer=scrape.observer)
        await body(harness, client, plan, scrape)

    harness.run(run)
    return scrape


def test_a_store_that_fails_is_counted_until_it_answers() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan, scrape: Scrape) -> None:
        async with client.lock("order:1", lease=LEASE):
            plan.fault = Fault(Kind.REFUSE)
            await harness.sleep(LEASE * 0.7)
            assert "leasehold_store_unreachable{" in scrape.text()
            [line] = [each for each in scrape.text().splitlines() if each.startswith("leasehold_store_unreachable{")]
            assert line.endswith(" 1.0")
            plan.fault = None
            await harness.sleep(LEASE)
            plan.fault = Fault(Kind.DROP_REQUEST)
        plan.fault = Fault(Kind.REFUSE)
        with pytest.raises(StoreUnavailable):
            await client.lock("order:2").acquire()
        plan.fault = None
        async with client.lock("order:3"):
            pass

    scrape = simulate(body)
    assert (scrape("leases_in_doubt_total"), scrape("renewals_late_total")) == (1, 1)
    assert (scrape("releases_unconfirmed_total"), scrape("lock_failures_total")) == (1, 1)
    lines = [line for line in scrape.text().splitlines() if line.startswith("leasehold_store_")]
    assert {line.split("{")[0] for line in lines} == {
        "leasehold_store_errors_total",
        "leasehold_store_errors_created",
        "leasehold_store_reconnects_total",
        "leasehold_store_reconnects_created",
        "leasehold_store_unreachable",
    }
    assert next(line for line in lines if "unreachable" in line).endswith(" 0.0")
    for request in ("acquire", "renew", "release"):
        assert f'request="{request}"' in scrape.text()


def test_a_client_that_was_closed_during_an_outage_is_not_counted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan, scrape: Scrape) -> None:
        plan.fault = Fault(Kind.REFUSE)
        with pytest.raises(StoreUnavailable):
            await client.lock("order:1").acquire()
        await client.close()

    clock = SimpleNamespace(monotonic=lambda: at[0])
    at = [1000.0]
    monkeypatch.setattr(prometheus, "time", clock)
    scrape = simulate(body)

    def unreachable() -> list[str]:
        return [line[-3:] for line in scrape.text().splitlines() if line.startswith("leasehold_store_unreachable{")]

    assert unreachable() == ["1.0"]
    at[0] += prometheus.FAILING
    assert unreachable() == ["1.0"]
    at[0] += 1
    assert unreachable() == ["0.0"]
    assert all(not owners for owners in scrape.observer._failing.values())


def test_a_loss_is_counted_and_measured() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan, scrape: Scrape) -> None:
        hold = await client.lock("order:1", lease=LEASE).acquire()
        plan.fault = Fault(Kind.REFUSE)
        await harness.sleep(2 * LEASE)
        assert hold is not None
        assert hold.lost

    scrape = simulate(body)
    assert (scrape("locks_lost_total"), scrape("locks_held")) == (1, 0)
    assert scrape("lock_hold_duration_seconds_sum") == pytest.approx(LEASE, rel=0.1)


def test_labels_are_bounded_and_no_secret_is_in_them() -> None:
    scrape = Scrape(names=["order:*"])
    with Client.from_url("redis://user:hunter2@127.0.0.1:1/0", observer=scrape.observer, response_timeout=0.2) as locks:
        for name in ("order:hunter2", "hunter2"):
            with pytest.raises(StoreUnavailable):
                locks.lock(name).acquire()
    assert "hunter2" not in scrape.text()
    assert 'store="redis://user:***@127.0.0.1:1/0"' in scrape.text()
    assert {'lock="order:*"', 'lock="other"'} <= {*scrape.text().replace("{", ",").replace("}", ",").split(",")}


def test_a_second_observer_of_a_registry_is_refused() -> None:
    scrape = Scrape()
    with pytest.raises(ValueError, match="leasehold_"):
        PrometheusObserver(scrape.registry)


def test_many_threads_lose_no_figure() -> None:
    scrape = Scrape()

    def work(number: int) -> None:
        for _ in range(300):
            with locks.lock(f"order:{number}"):
                pass

    with Client.from_url("memory:", observer=scrape.observer) as locks:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            scrape("locks_held")
        for thread in threads:
            thread.join()
    assert scrape("locks_acquired_total") == scrape("lock_hold_duration_seconds_count") == 1200
    assert scrape("locks_held") == 0


def test_what_nobody_reads_is_worked_off_and_complete() -> None:
    scrape, count = Scrape(), 3 * WAITING
    for _ in range(count):
        scrape.observer.acquired("order:1", 0.001, False)
        scrape.observer.released("order:1", 0.001)
    assert len(scrape.observer._buffered._acquired) <= WAITING
    assert scrape("locks_acquired_total") == scrape("lock_hold_duration_seconds_count") == count
    assert scrape("locks_held") == 0


def test_a_signal_handler_may_release_during_a_scrape() -> None:
    scrape = Scrape()
    with Client.from_url("memory:", observer=scrape.observer) as locks:
        hold = locks.lock("order:1").acquire()
        assert hold is not None
        histogram = scrape.observer._of_locks.acquire

        class Interrupting:
            def observe(self, value: float) -> None:
                signal.raise_signal(signal.SIGUSR1)
                histogram.labels("order:*").observe(value)

        before = signal.signal(signal.SIGUSR1, lambda *_: hold.release())
        try:
            series = scrape.observer._series("order:1")
            series.acquire = Interrupting()  # type: ignore[assignment]
            assert scrape("locks_acquired_total") == 1
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert (scrape("locks_held"), scrape("lock_hold_duration_seconds_count")) == (0, 1)


def test_a_forked_child_holds_nothing() -> None:
    scrape = Scrape()
    with Client.from_url("memory:", observer=scrape.observer) as locks:
        hold = locks.lock("order:1").acquire()
        assert hold is not None
        assert scrape("locks_held") == 1
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(int(scrape("locks_held") or 0))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert scrape("locks_held") == 1
        hold.release()


WORKER = """
import sys, time
from leasehold import Client
from leasehold.observability.prometheus import FLUSH_EVERY, PrometheusObserver

with Client.from_url("memory:", observer=PrometheusObserver()) as locks:
    for _ in range(3):
        with locks.lock("order:1"):
            pass
    hold = locks.lock("order:2").acquire()
    time.sleep(FLUSH_EVERY)
    print("held", flush=True)
    sys.stdin.readline()
    hold.release()
"""

SUM = """
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

registry = CollectorRegistry()
MultiProcessCollector(registry)
for name in ("locks_acquired_total", "locks_held", "lock_hold_duration_seconds_count"):
    print(registry.get_sample_value("leasehold_" + name, {"lock": "order:*"}))
"""


def test_the_figures_of_several_processes_are_added_up(tmp_path: Path) -> None:
    """As with gunicorn; the gauges are the sum over the processes that live."""
    several = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=several)
        for _ in range(2)
    ]

    def added_up() -> list[float]:
        done = subprocess.run([sys.executable, "-c", SUM], env=several, capture_output=True, text=True, check=True)
        return [float(line) for line in done.stdout.split()]

    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "held\n"
        for _ in range(50):  # the timer may be late
            if added_up() == [8, 2, 6]:
                break
        assert added_up() == [8, 2, 6]
    finally:
        for worker in workers:
            worker.communicate("\n", timeout=30)
    assert [worker.returncode for worker in workers] == [0, 0]
    assert added_up() == [8, 0, 8], "what was left is written at the exit"

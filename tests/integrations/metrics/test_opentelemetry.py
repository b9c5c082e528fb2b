"""The figures and spans that OpenTelemetry gets, in both flavors, from a real SDK."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from leasehold import AsyncClient, Client
from leasehold.observability.combined import Combined
from leasehold.observability.opentelemetry import OpenTelemetryObserver, store_attributes
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.flavors import both

LEASE = 9.0


class Telemetry:
    """An observer with readers of what it makes."""

    def __init__(self, **options: Any) -> None:
        self._reader, self._exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.tracers.get_tracer("test")
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.observer = OpenTelemetryObserver(meters, self.tracers, **options)

    def figures(self) -> dict[str, Any]:
        """Return each metric by its name without the prefix: values, or counts of histograms, by label."""
        data = self._reader.get_metrics_data()
        assert data is not None
        found: dict[str, Any] = {}
        for metric in (each for r in data.resource_metrics for s in r.scope_metrics for each in s.metrics):
            for point in metric.data.data_points:
                value = getattr(point, "value", None) if hasattr(point, "value") else point.count  # type: ignore[union-attr]
                attributes = dict(point.attributes or {})
                key = attributes.get("leasehold.lock") or attributes.get("db.operation.name") or ""
                found.setdefault(metric.name.removeprefix("leasehold."), {})[key] = value
        return found

    def spans(self, name: str = "leasehold.") -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]


class Plan:
    fault: Fault | None = None

    def __call__(self, call: Call) -> Fault | None:
        return self.fault if call.method in ("try_acquire", "release", "renew") else None


def simulate(
    telemetry: Telemetry, body: Callable[[SimulatedHarness, AsyncClient, Plan], Coroutine[Any, Any, None]]
) -> None:
    harness, plan = SimulatedHarness(), Plan()

    async def run(_: Harness) -> None:
        await body(harness, harness.client(Faulty(Memory(), plan), observer=telemetry.observer), plan)

    harness.run(run)


@both
def test_figures(harness: Harness) -> None:
    telemetry = Telemetry()

    async def body(harness: Harness) -> None:
        client = harness.client(observer=Combined(telemetry.observer))
        async with client.lock("order:1"):
            assert telemetry.figures()["locks.held"] == {"order:*": 1}
            assert await client.lock("order:1").acquire(timeout=0.01) is None

    harness.run(body)
    figures = telemetry.figures()
    assert figures["locks.held"] == figures["locks.waiting"] == {"order:*": 0}
    assert figures["locks.acquired"] == figures["lock.timeouts"] == {"order:*": 1}
    assert figures["lock.acquire.duration"] == figures["lock.hold.duration"] == {"order:*": 1}


def test_faults_are_counted_and_noted_on_the_span() -> None:
    telemetry = Telemetry()

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan) -> None:
        hold = await client.lock("order:1", lease=LEASE).acquire()
        plan.fault = Fault(Kind.REFUSE)
        await harness.sleep(LEASE * 0.7)
        plan.fault = None
        await harness.sleep(LEASE)
        plan.fault = Fault(Kind.REFUSE)
        await harness.sleep(2 * LEASE)
        assert hold is not None
        assert hold.lost

    simulate(telemetry, body)
    figures = telemetry.figures()
    assert figures["locks.lost"] == figures["renewals.late"] == {"order:*": 1}
    assert figures["leases.in_doubt"] == {"order:*": 2}
    assert figures["store.errors"]["renew"] > 1
    assert figures["store.reconnects"] == {"": 1}
    assert figures["locks.held"] == {"order:*": 0}
    [held] = telemetry.spans("leasehold.hold")
    assert held.status.status_code is StatusCode.ERROR
    assert held.status.description == "the lease expired"
    assert [event.name.removeprefix("leasehold.") for event in held.events] == [
        *("in_doubt", "renewed", "renewed_late", "in_doubt")
    ]


@both
def test_a_span_for_each_acquire_and_hold_with_the_caller_as_parent(harness: Harness) -> None:
    telemetry = Telemetry()

    async def body(harness: Harness) -> None:
        client = harness.client(observer=telemetry.observer)
        with telemetry.tracer.start_as_current_span("request"):
            hold = await client.lock("order:1").acquire()
        assert hold is not None
        with telemetry.tracer.start_as_current_span("another"):
            assert await client.lock("order:1").acquire(timeout=0.01) is None
            await hold.release()

    harness.run(body)
    acquired, gave_up = telemetry.spans("leasehold.acquire")
    [held] = telemetry.spans("leasehold.hold")
    request, another = telemetry.spans("request"), telemetry.spans("another")
    for span, parent in ((acquired, request[0]), (held, request[0]), (gave_up, another[0])):
        assert span.parent is not None
        assert span.parent.span_id == parent.context.span_id
    assert acquired.kind is gave_up.kind is SpanKind.CLIENT
    assert acquired.start_time <= acquired.end_time == held.start_time < held.end_time  # type: ignore[operator]
    assert gave_up.end_time - gave_up.start_time >= 9_000_000  # type: ignore[operator]
    outcomes = [dict(span.attributes or {})["leasehold.outcome"] for span in (acquired, gave_up, held)]
    assert outcomes == ["acquired", "timeout", "released"]
    assert gave_up.status.status_code is StatusCode.UNSET
    facts = dict(held.attributes or {})
    assert (facts["leasehold.lock.name"], facts["leasehold.token"]) == (
        "order:1",
        acquired.attributes["leasehold.token"],
    )  # type: ignore[index]


def test_tasks_and_threads_each_have_their_own_parent() -> None:
    telemetry = Telemetry()

    async def in_tasks() -> None:
        async with AsyncClient.from_url("memory:", observer=telemetry.observer) as locks:

            async def request(number: int) -> None:
                with telemetry.tracer.start_as_current_span(f"task {number}"):
                    async with locks.lock("one"):
                        await asyncio.sleep(0)

            await asyncio.gather(*(request(number) for number in range(5)))

    asyncio.run(in_tasks())
    with Client.from_url("memory:", observer=telemetry.observer) as locks:

        def request(number: int) -> None:
            with telemetry.tracer.start_as_current_span(f"thread {number}"), locks.lock("one"):
                pass

        threads = [threading.Thread(target=request, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    parents = {span.context.span_id for span in (*telemetry.spans("task"), *telemetry.spans("thread"))}
    for name in ("leasehold.acquire", "leasehold.hold"):
        assert {span.parent.span_id for span in telemetry.spans(name) if span.parent} == parents


def test_a_hold_that_is_released_elsewhere_ends_its_span_and_nobody_gets_it_as_current() -> None:
    telemetry = Telemetry()
    with Client.from_url("memory:", observer=telemetry.observer) as locks:
        before = context.get_current()
        hold = locks.lock("one").acquire()
        assert context.get_current() == before
        assert hold is not None
        thread = threading.Thread(target=hold.release)
        thread.start()
        thread.join()
    [held] = telemetry.spans("leasehold.hold")
    assert held.parent is None
    assert telemetry.observer._holds == {}


def test_without_spans_no_event_of_an_acquire_is_wanted() -> None:
    telemetry = Telemetry(spans=False)
    with Client.from_url("memory:", observer=telemetry.observer) as locks, locks.lock("one"):
        pass
    assert telemetry.spans() == []
    assert telemetry.figures()["locks.acquired"] == {"one": 1}


@pytest.mark.parametrize(
    ("store", "facts"),
    [
        ("redis://user:***@web-1:6379/0", ("redis", "web-1", 6379, "0")),
        ("rediss://web-1", ("redis", "web-1", None, None)),
        ("redis+sentinel://a:1,b:2/main", ("redis", "a", 1, "main")),
        ("postgresql://app@db/shop", ("postgresql", "db", None, "shop")),
        ("mariadb://db:3306/shop", ("mariadb", "db", 3306, "shop")),
        ("etcd://[::1]:2379", ("etcd", "::1", 2379, None)),
        ("zookeeper://a:2181,b:2181/locks", ("zookeeper", "a", 2181, None)),
        ("sqlite:///var/lib/locks.db", ("sqlite", None, None, None)),
        ("memory:", ("memory", None, None, None)),
        ("<RedisStore localhost:6379 namespace='default'>", ("redis", None, None, None)),
    ],
)
def test_a_store_has_the_names_of_the_semantic_conventions(store: str, facts: tuple[object, ...]) -> None:
    found = store_attributes(store)
    names = ("db.system.name", "server.address", "server.port", "db.namespace")
    assert tuple(found.get(name) for name in names) == facts

"""What an observer costs: ``python -m leasehold_lab.bench.observers [URL]``; without a URL a Redis is started for it.

An acquire and a release, uncontended, with the observer and without it, in turns within one process. The figure is the
processor time that the observer adds (the median of the differences of neighbors), as a part of the time that an
acquire and a release take without it (that of the fastest tenth). So other work of the machine changes it little: the
thread that acquires is the one that pays, and its time without a processor counts for neither.

Prometheus and OpenTelemetry read the figures between the blocks, in their own time. A second row shows what they cost a
process that makes more figures between two readings than their buffer holds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from leasehold import AsyncClient, Client
from leasehold.events import Event, Observer, Tally
from leasehold.observability._figures import WAITING
from leasehold.observability.history import History
from leasehold.observability.recorder import Recorder
from leasehold_lab.servers import RedisServer

PAIRS = 256  # of acquire and release, in a row: as many as are worked off at once when a buffer is full
ROUNDS = 60
NAME = "bench-observers"


Times = tuple[float, float]
"""Seconds of the clock, and of processor time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an observer costs in one flavor.

    Attributes:
        plain: seconds of an acquire and a release without it.
        added: seconds of processor time that it adds to them.

    """

    plain: float
    added: float

    @property
    def share(self) -> float:
        """What it adds, as a part of the time without it."""
        return self.added / self.plain

    def __str__(self) -> str:
        return f"{self.share * 100:+.1f} % of {self.plain * 1e6:.0f} µs"


def observers(folder: Path) -> Iterator[tuple[str, Observer | None]]:
    """Yield all observers whose libraries are installed, after none at all, which shows the noise."""
    yield "none", None
    try:
        from prometheus_client import CollectorRegistry

        from leasehold.observability.prometheus import PrometheusObserver

        yield "Prometheus", PrometheusObserver(CollectorRegistry())
        yield "Prometheus, buffer full", filled(PrometheusObserver(CollectorRegistry()))
    except ImportError:
        print("prometheus-client is not installed", file=sys.stderr)
    try:
        yield from _of_opentelemetry()
    except ImportError:
        print("opentelemetry-sdk is not installed", file=sys.stderr)
    yield "history", History()
    with Recorder(folder / "locks.jsonl") as recorder:
        yield "recorder", recorder


def _of_opentelemetry() -> Iterator[tuple[str, Observer]]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from leasehold.observability.opentelemetry import OpenTelemetryObserver

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    try:
        meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
        yield "OpenTelemetry, metrics", OpenTelemetryObserver(meters, tracers, spans=False)
        yield "OpenTelemetry, buffer full", filled(OpenTelemetryObserver(meters, tracers, spans=False))
        yield "OpenTelemetry, metrics and spans", OpenTelemetryObserver(meters, tracers)
    finally:
        tracers.shutdown()


class Full:
    """An observer whose buffer is full, and that nobody reads."""

    def __init__(self, tally: Tally) -> None:
        self.wants, self.acquired, self.released = tally.wants, tally.acquired, tally.released
        self._tally = tally
        for _ in range(WAITING):
            self.acquired(NAME, 0.001, False)
            self.released(NAME, 0.001)

    def __call__(self, event: Event) -> None:
        """Pass an event on."""
        self._tally(event)


def filled(tally: Tally) -> Observer:
    """Return an observer with a full buffer."""
    return Full(tally)


def read(observer: Observer | None) -> None:
    """Read the figures, as a scrape or an export does in a thread of its own."""
    buffered = getattr(observer, "_buffered", None)
    if buffered is not None:
        buffered.flush()


def blocking(url: str, observer: Observer | None, rounds: int = ROUNDS) -> Cost:
    """Measure the blocking client."""

    def block(client: Client) -> Times:
        lock = client.lock(NAME)
        start = now()
        for _ in range(PAIRS):
            with lock:
                pass
        took = since(start)
        read(observer)
        return took

    with Client.from_url(url) as plain, Client.from_url(url, observer=observer) as observed:
        return _compare([(block(plain), block(observed)) for _ in range(rounds)])


def asynchronous(url: str, observer: Observer | None, rounds: int = ROUNDS) -> Cost:
    """Measure the client of asyncio."""

    async def block(client: AsyncClient) -> Times:
        lock = client.lock(NAME)
        start = now()
        for _ in range(PAIRS):
            async with lock:
                pass
        took = since(start)
        read(observer)
        return took

    async def measure() -> Cost:
        async with AsyncClient.from_url(url) as plain, AsyncClient.from_url(url, observer=observer) as observed:
            return _compare([(await block(plain), await block(observed)) for _ in range(rounds)])

    return asyncio.run(measure())


FLAVORS: dict[str, Callable[..., Cost]] = {"blocking": blocking, "asyncio": asynchronous}


def now() -> Times:
    """Return the clock and the processor time of this process."""
    return time.perf_counter(), time.process_time()


def since(start: Times) -> Times:
    """Return what passed of both."""
    clock, processor = now()
    return clock - start[0], processor - start[1]


def _compare(pairs: list[tuple[Times, Times]]) -> Cost:
    warm = pairs[len(pairs) // 10 :]
    fastest = statistics.quantiles((plain[0] for plain, _ in warm), n=10)[0]
    added = statistics.median(observed[1] - plain[1] for plain, observed in warm)
    return Cost(fastest / PAIRS, added / PAIRS)


@contextmanager
def store(url: str | None) -> Generator[str]:
    """Use a store, or start a Redis."""
    if url is not None:
        yield url
        return
    with RedisServer() as server:
        yield server.url


def main(url: str | None = None) -> None:
    """Print what each observer costs."""
    with store(url) as where, tempfile.TemporaryDirectory() as folder:
        for name, observer in observers(Path(folder)):
            costs = [f"{flavor} {measure(where, observer)}" for flavor, measure in FLAVORS.items()]
            print(f"{name:32} {'   '.join(costs)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])

"""Figures and spans of locks for OpenTelemetry: an observer.

Example:
    ```python
    from leasehold import Client
    from leasehold.observability.opentelemetry import OpenTelemetryObserver

    observer = OpenTelemetryObserver(names=["order:*"])
    with Client.from_url("memory:", observer=observer) as locks, locks.lock("order:42"):
        pass
    ```

Spans
-----
An acquire and a hold are a span each, children of the caller's current span at the moment of the acquire. `Acquired`
and `GaveUp` arrive in the thread or task that acquires, so its context is the caller's. The span of the acquire is made
there, after the fact, with the time at which it began. The span of the hold begins there, too, and is kept until
`Released` or `Lost` arrives, in whatever thread or task: it never becomes the current span of a thread or task.

The full name of a lock is an attribute of spans only. Metrics have its label.
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from leasehold.events import (
    Acquired,
    Event,
    GaveUp,
    InDoubt,
    Lost,
    Queued,
    Reconnected,
    Released,
    Renewed,
    RenewedLate,
    RequestFailed,
)
from leasehold.observability._figures import Buffered, Figures
from leasehold.observability._one_at_a_time import OneAtATime
from leasehold.observability.names import Labels, Names

__all__ = ["OpenTelemetryObserver", "store_attributes"]

SCOPE = "leasehold"

ACQUIRE_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
HOLD_BUCKETS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0]

COUNTED = frozenset({Queued, GaveUp, InDoubt, Lost, RequestFailed, Reconnected, RenewedLate})
TRACED = frozenset({Acquired, GaveUp, InDoubt, Renewed, RenewedLate, Lost, Released})

SYSTEMS = {
    "rediss": "redis",
    "unix": "redis",
    "redlock": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "postgres": "postgresql",
    "etcds": "etcd",
}
"""Schemes of URLs by ``db.system.name`` of the semantic conventions, where they differ."""

DESCRIBED = re.compile(r"<(\w+?)(?:Store)?\b")
"""The beginning of the description of a store that was opened without a URL."""

Key = tuple[str, str, int]


class OpenTelemetryObserver:
    """Measures and traces the locks of clients, of both flavors."""

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        *,
        names: Names | None = None,
        limit: int = 100,
        spans: bool = True,
    ) -> None:
        """Make the instruments.

        Args:
            meter_provider: where the metrics go; None for the global one.
            tracer_provider: where the spans go; None for the global one.
            names: patterns such as ``order:*``, or a function: what becomes the attribute ``leasehold.lock`` of
                metrics. A name that fits no pattern is ``other``. By default it is the static prefix of the name.
            limit: the highest number of such labels; further ones are ``other``.
            spans: whether there is a span for each acquire and hold.
        """
        self._label = Labels(names, limit)
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider) if spans else None
        self._make_instruments(meter_provider or metrics.get_meter_provider())
        self._held: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._holds: dict[Key, Span] = {}
        self._stores: dict[str, dict[str, str | int]] = {}
        self._buffered = Buffered(self._take, self._count, self._forked)
        self._traces = OneAtATime(self._trace, self._holds.clear)
        self.acquired, self.released = self._buffered.acquired, self._buffered.released

    def _make_instruments(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)
        self._acquire = meter.create_histogram(
            "leasehold.lock.acquire.duration",
            "s",
            "Time from asking for a lock to holding it.",
            explicit_bucket_boundaries_advisory=ACQUIRE_BUCKETS,
        )
        self._hold = meter.create_histogram(
            "leasehold.lock.hold.duration",
            "s",
            "Time from holding a lock to its release or loss.",
            explicit_bucket_boundaries_advisory=HOLD_BUCKETS,
        )
        meter.create_observable_up_down_counter(
            "leasehold.locks.held", [self._observe_held], "{lock}", "Locks that this process holds."
        )
        meter.create_observable_up_down_counter(
            "leasehold.locks.waiting", [self._observe_waiting], "{acquire}", "Acquires that wait in a queue."
        )
        self._acquired = meter.create_counter("leasehold.locks.acquired", "{lock}", "Locks acquired.")
        self._timeouts = meter.create_counter("leasehold.lock.timeouts", "{acquire}", "Acquires that timed out.")
        self._failures = meter.create_counter("leasehold.lock.failures", "{acquire}", "Acquires that ended otherwise.")
        self._lost = meter.create_counter("leasehold.locks.lost", "{lock}", "Leases that ended before their release.")
        self._in_doubt = meter.create_counter("leasehold.leases.in_doubt", "{lease}", "Leases in doubt.")
        self._late = meter.create_counter("leasehold.renewals.late", "{renewal}", "Renewals with under a third left.")
        self._unconfirmed = meter.create_counter("leasehold.releases.unconfirmed", "{release}", "Unconfirmed releases.")
        self._errors = meter.create_counter("leasehold.store.errors", "{request}", "Requests for locks that failed.")
        self._reconnects = meter.create_counter("leasehold.store.reconnects", "{answer}", "Answers after failures.")

    # --- an observer -------------------------------------------------------------------------------------------

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind are counted or traced."""
        return kind in COUNTED or (self._tracer is not None and kind in TRACED)

    def __call__(self, event: Event) -> None:
        """Count and trace an event."""
        if type(event) in COUNTED or isinstance(event, Released):
            self._buffered.put(event)
        if self._tracer is not None:
            self._traces((event, get_current(), self._tracer))

    # --- metrics, one at a time --------------------------------------------------------------------------------

    def _observe_held(self, options: CallbackOptions) -> list[Observation]:
        self._buffered.flush()
        return [Observation(count, {"leasehold.lock": label}) for label, count in list(self._held.items())]

    def _observe_waiting(self, options: CallbackOptions) -> list[Observation]:
        return [Observation(count, {"leasehold.lock": label}) for label, count in list(self._waiting.items())]

    def _take(self, figures: Figures) -> None:
        new: dict[str, int] = {}
        for name, waited, was_queued in figures.acquired:
            label = self._label(name)
            self._acquire.record(waited, {"leasehold.lock": label})
            new[label] = new.get(label, 0) + 1
            if was_queued:
                self._waiting[label] = self._waiting.get(label, 0) - 1
        for label, count in new.items():
            self._acquired.add(count, {"leasehold.lock": label})
            self._held[label] = self._held.get(label, 0) + count
        for name, held in figures.released:
            label = self._label(name)
            self._hold.record(held, {"leasehold.lock": label})
            self._held[label] = self._held.get(label, 0) - 1

    def _count(self, event: Event) -> None:
        label = self._label(event.name)
        facts: dict[str, str | int] = {"leasehold.lock": label}
        match event:
            case Queued():
                self._waiting[label] = self._waiting.get(label, 0) + 1
            case GaveUp():
                if event.queued:
                    self._waiting[label] = self._waiting.get(label, 0) - 1
                (self._timeouts if event.why == "timeout" else self._failures).add(1, facts)
            case InDoubt():
                self._in_doubt.add(1, facts)
            case Lost():
                self._lost.add(1, facts)
                self._held[label] = self._held.get(label, 0) - 1
                self._hold.record(event.held, facts)
            case RenewedLate():
                self._late.add(1, facts)
            case Released(confirmed=False):
                self._unconfirmed.add(1, facts)
            case RequestFailed():
                self._errors.add(1, {**self._store(event.store), "db.operation.name": event.request})
            case Reconnected():
                self._reconnects.add(1, self._store(event.store))
            case _:
                pass

    def _store(self, store: str) -> dict[str, str | int]:
        known = self._stores.get(store)
        if known is None:
            known = self._stores[store] = store_attributes(store)
        return known

    # --- spans, one at a time ----------------------------------------------------------------------------------

    def _trace(self, given: tuple[Event, Context, trace.Tracer]) -> None:
        event, caller, tracer = given
        match event:
            case Acquired():
                self._acquire_span(event, caller, tracer).end(_ns(event.time))
                held = self._span("leasehold.hold", event, caller, tracer, event.time)
                held.set_attribute("leasehold.token", event.token)
                self._holds[event.owner, event.name, event.token] = held
            case GaveUp():
                span = self._acquire_span(event, caller, tracer)
                span.set_attribute("leasehold.outcome", event.why)
                if event.why not in ("timeout", "cancelled", "CancelledError"):
                    span.set_status(Status(StatusCode.ERROR, event.why))
                span.end(_ns(event.time))
            case Released():
                if (span_held := self._holds.pop((event.owner, event.name, event.token), None)) is not None:
                    span_held.set_attribute("leasehold.outcome", "released" if event.confirmed else "unconfirmed")
                    span_held.end(_ns(event.time))
            case Lost():
                if (span_held := self._holds.pop((event.owner, event.name, event.token), None)) is not None:
                    span_held.set_attribute("leasehold.outcome", "lost")
                    span_held.set_status(Status(StatusCode.ERROR, event.why))
                    span_held.end(_ns(event.time))
            case InDoubt() | Renewed() | RenewedLate():
                if (span_held := self._holds.get((event.owner, event.name, event.token))) is not None:
                    facts = {"leasehold.error": str(event.error)} if event.error else {}
                    span_held.add_event(f"leasehold.{NOTES[type(event)]}", facts, _ns(event.time))
            case _:
                pass

    def _acquire_span(self, event: Acquired | GaveUp, caller: Context, tracer: trace.Tracer) -> Span:
        span = self._span("leasehold.acquire", event, caller, tracer, event.time - event.waited)
        span.set_attribute("leasehold.queued", event.queued)
        if isinstance(event, Acquired):
            span.set_attributes({"leasehold.token": event.token, "leasehold.outcome": "acquired"})
        return span

    def _span(self, name: str, event: Event, caller: Context, tracer: trace.Tracer, start: float) -> Span:
        facts = {
            **self._store(event.store),
            "db.operation.name": name.removeprefix("leasehold."),
            "leasehold.lock.name": event.name,
            "leasehold.lock.kind": event.kind,
            "leasehold.namespace": event.namespace,
            "leasehold.owner": event.owner,
        }
        kind = SpanKind.CLIENT if name == "leasehold.acquire" else SpanKind.INTERNAL
        return tracer.start_span(name, caller, kind, facts, start_time=_ns(start))

    def _forked(self) -> None:
        """Begin without holds and waits, in a forked child: those are the parent's."""
        self._held.clear()
        self._waiting.clear()


NOTES: dict[type[Event], str] = {InDoubt: "in_doubt", Renewed: "renewed", RenewedLate: "renewed_late"}
"""What the events within a span are called."""


def store_attributes(store: str) -> dict[str, str | int]:
    """Return a store as the attributes of the semantic conventions: system, first address, port, database."""
    facts: dict[str, str | int] = {}
    with suppress(ValueError):  # a host or port that is none
        url = urlsplit(store)
        scheme = url.scheme.partition("+")[0]
        if (described := DESCRIBED.match(store)) is not None:
            scheme = described[1].lower()
            return {"db.system.name": SYSTEMS.get(scheme, scheme)}
        facts["db.system.name"] = SYSTEMS.get(scheme, scheme)
        first = url.netloc.rpartition("@")[2].partition(",")[0]
        address = urlsplit(f"//{first}")
        if address.hostname:
            facts["server.address"] = address.hostname
        if address.port:
            facts["server.port"] = address.port
        database = url.path.strip("/")
        if database and facts["db.system.name"] in ("redis", "postgresql", "mysql", "mariadb"):
            facts["db.namespace"] = database
    return facts


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)

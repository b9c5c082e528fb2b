"""Figures of locks for Prometheus: an observer, and a collector of its registry.

Example:
    ```python
    from prometheus_client import CollectorRegistry

    from leasehold import Client
    from leasehold.observability.prometheus import PrometheusObserver

    observer = PrometheusObserver(CollectorRegistry(), names=["order:*", "stock:*"])
    with Client.from_url("memory:", observer=observer) as locks, locks.lock("order:42"):
        pass
    ```

One observer serves all clients of a process, of both flavors. The figures of acquires and releases wait in a buffer
until Prometheus scrapes the process. With several processes (``PROMETHEUS_MULTIPROC_DIR``), a scrape reads the files of
all of them, so a timer works the buffer off each `FLUSH_EVERY` seconds, and the end of a process does: a child of
``multiprocessing`` by its finalizers, since it runs no exit handlers, and a pool process of Celery by its signal.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import process, util

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from leasehold.events import (
    Event,
    GaveUp,
    InDoubt,
    Lost,
    Queued,
    Reconnected,
    Released,
    RenewedLate,
    RequestFailed,
)
from leasehold.observability._figures import Buffered, Figures
from leasehold.observability.names import REMEMBERED, Labels, Names

__all__ = ["ACQUIRE_BUCKETS", "HOLD_BUCKETS", "PrometheusObserver"]

ACQUIRE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HOLD_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)

STORES = 20  # stores with a label of their own
FLUSH_EVERY = 1.0  # seconds for which figures wait, with several processes
FAILING = 300.0  # seconds after a failed request for which its client counts as one that cannot reach the store

WANTED = frozenset({Queued, GaveUp, InDoubt, Lost, RequestFailed, Reconnected, RenewedLate})


@dataclass(slots=True, eq=False)
class _Series:
    """What is measured of the locks with one label, and what is counted of one batch."""

    acquire: Histogram
    hold: Histogram
    held: Gauge
    waiting: Gauge
    acquired: Counter
    timeouts: Counter
    failures: Counter
    lost: Counter
    in_doubt: Counter
    late: Counter
    unconfirmed: Counter
    new: int = 0
    ended: int = 0
    served: int = 0  # those of the new that had waited in a queue

    def labelled(self, label: str) -> _Series:
        """Return the series with a label, if this has the metrics."""
        return _Series(
            *(self.acquire.labels(label), self.hold.labels(label)),
            *(self.held.labels(label), self.waiting.labels(label)),
            *(self.acquired.labels(label), self.timeouts.labels(label), self.failures.labels(label)),
            *(self.lost.labels(label), self.in_doubt.labels(label)),
            *(self.late.labels(label), self.unconfirmed.labels(label)),
        )

    def count(self) -> None:
        """Add what is counted of one batch."""
        if self.new:
            self.acquired.inc(self.new)
        if self.new != self.ended:
            self.held.inc(self.new - self.ended)
        if self.served:
            self.waiting.dec(self.served)
        self.new = self.ended = self.served = 0


class PrometheusObserver:
    """Counts and measures the locks of clients.

    Attributes:
        metrics: all metrics, each a collector of ``prometheus_client``.

    """

    def __init__(
        self,
        registry: CollectorRegistry | None = REGISTRY,
        *,
        names: Names | None = None,
        limit: int = 100,
        acquire_buckets: Sequence[float] = ACQUIRE_BUCKETS,
        hold_buckets: Sequence[float] = HOLD_BUCKETS,
    ) -> None:
        """Make the metrics and register them.

        Args:
            registry: where they are collected; None for nowhere, if you call `collect` yourself.
            names: patterns such as ``order:*``, or a function: what becomes the label ``lock`` of a name. A name that
                fits no pattern has the label ``other``. By default the label is the static prefix of the name.
            limit: the highest number of labels; further ones are ``other``.
            acquire_buckets: upper bounds in seconds of the histogram of acquires.
            hold_buckets: the same for the histogram of holds.

        Raises:
            ValueError: the registry has these metrics already; give the same observer to all clients.
        """
        self._label = Labels(names, limit)
        self._store_label = Labels(lambda store: store, STORES)
        self._make_metrics(tuple(acquire_buckets), tuple(hold_buckets))
        self._failing: dict[str, dict[str, float]] = {}  # by store, clients without an answer: their last failure
        self._by_label: dict[str, _Series] = {}
        self._by_name: dict[str, _Series] = {}  # those used last
        self._buffered = Buffered(self._take, self._event, self._forked)
        self.acquired, self.released = self._buffered.acquired, self._buffered.released
        self._several = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        if self._several:
            self._timer_of = 0  # the process in which a timer runs
            self._timer: threading.Thread | None = None  # the last one that was started
            self.acquired, self.released = self._acquired_soon, self._released_soon
            atexit.register(_flush, weakref.ref(self))
            if not _writers:
                util.register_after_fork(_writers, _in_child)  # a child forgets the finalizers of its parent
            if process.parent_process() is not None:
                _in_child(_writers)
            _writers.add(self)
        if registry is not None:
            registry.register(self)

    def _make_metrics(self, acquire_buckets: tuple[float, ...], hold_buckets: tuple[float, ...]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"leasehold_{name}", text, labels or ("lock",), registry=None)

        def gauge(name: str, text: str, label: str = "lock") -> Gauge:
            return Gauge(f"leasehold_{name}", text, (label,), registry=None, multiprocess_mode="livesum")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"leasehold_{name}", text, ("lock",), buckets=buckets, registry=None)

        of = self._of_locks = _Series(
            histogram("lock_acquire_duration_seconds", "Time from asking for a lock to holding it.", acquire_buckets),
            histogram("lock_hold_duration_seconds", "Time from holding a lock to its release or loss.", hold_buckets),
            gauge("locks_held", "Locks that this process holds."),
            gauge("locks_waiting", "Acquires of this process that wait in a queue."),
            counter("locks_acquired", "Locks acquired."),
            counter("lock_timeouts", "Acquires that ended without the lock, as it was taken."),
            counter("lock_failures", "Acquires that ended for another reason: cancelled, or an error."),
            counter("locks_lost", "Leases that ended before their holder released them."),
            counter("leases_in_doubt", "Leases in doubt: a renewal failed."),
            counter("renewals_late", "Renewals confirmed with less than a third of the lease left."),
            counter("releases_unconfirmed", "Releases that the store did not confirm; its lease frees the lock."),
        )
        self._errors = counter("store_errors", "Requests for locks that failed.", "store", "request")
        self._reconnects = counter("store_reconnects", "First answers of the store after failures.", "store")
        self._unreachable = gauge("store_unreachable", "Clients whose last request failed, not long ago.", "store")
        self.metrics = (
            *(of.acquire, of.hold, of.held, of.waiting, of.acquired, of.timeouts, of.failures),
            *(of.lost, of.in_doubt, of.late, of.unconfirmed),
            *(self._errors, self._reconnects, self._unreachable),
        )

    # --- a collector -------------------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """Return all figures, up to now."""
        self._buffered.flush()
        return [each for metric in self.metrics for each in metric.collect()]

    def describe(self) -> Iterable[Metric]:
        """Return all metrics, without figures."""
        return [each for metric in self.metrics for each in metric.describe()]

    # --- an observer -------------------------------------------------------------------------------------------

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind are counted; acquires and releases come as bare figures."""
        return kind in WANTED

    def __call__(self, event: Event) -> None:
        """Count an event."""
        self._buffered.put(event)
        if self._several and self._timer_of != os.getpid():
            self._start_timer()

    def _acquired_soon(self, name: str, waited: float, queued: bool) -> None:
        self._buffered.acquired(name, waited, queued)
        if self._timer_of != os.getpid():
            self._start_timer()

    def _released_soon(self, name: str, held: float) -> None:
        self._buffered.released(name, held)
        if self._timer_of != os.getpid():
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer_of = os.getpid()
        timer = threading.Timer(FLUSH_EVERY, _flush_in_time, (weakref.ref(self),))
        timer.daemon = True
        timer.name = "leasehold-prometheus"
        self._timer = timer
        try:
            timer.start()
        except RuntimeError:  # no thread can be started
            self.flush()

    def flush(self) -> None:
        """Work off the buffer now. Needed only where processes end without running exit handlers."""
        if self._several:
            self._timer_of = 0  # before the work: what comes during it starts the next timer
        self._buffered.flush()

    # --- one at a time -----------------------------------------------------------------------------------------

    def _series(self, name: str) -> _Series:
        label = self._label(name)
        series = self._by_label.get(label)
        if series is None:
            series = self._by_label[label] = self._of_locks.labelled(label)
        if len(self._by_name) >= REMEMBERED:
            self._by_name.clear()
        self._by_name[name] = series
        return series

    def _take(self, figures: Figures) -> None:
        known = self._by_name.get
        for name, waited, was_queued in figures.acquired:
            series = known(name) or self._series(name)
            series.acquire.observe(waited)
            series.new += 1
            series.served += was_queued
        for name, held in figures.released:
            series = known(name) or self._series(name)
            series.hold.observe(held)
            series.ended += 1
        for series in self._by_label.values():
            series.count()
        for store in self._failing:
            self._count_failing(store)

    def _event(self, event: Event) -> None:
        series = self._series(event.name)
        match event:
            case Queued():
                series.waiting.inc()
            case GaveUp():
                if event.queued:
                    series.waiting.dec()
                (series.timeouts if event.why == "timeout" else series.failures).inc()
            case InDoubt():
                series.in_doubt.inc()
            case Lost():
                series.lost.inc()
                series.held.dec()
                series.hold.observe(event.held)
            case RenewedLate():
                series.late.inc()
            case Released(confirmed=False):
                series.unconfirmed.inc()
            case RequestFailed():
                self._errors.labels(self._store_label(event.store), event.request).inc()
                self._failing.setdefault(event.store, {})[event.owner] = time.monotonic()
                self._count_failing(event.store)
            case Reconnected():
                self._reconnects.labels(self._store_label(event.store)).inc()
                self._failing.get(event.store, {}).pop(event.owner, None)
                self._count_failing(event.store)
            case _:
                pass

    def _count_failing(self, store: str) -> None:
        """Set the gauge of a store. A client that was closed during an outage is counted no longer than `FAILING`."""
        label, owners, now = self._store_label(store), self._failing.get(store, {}), time.monotonic()
        for owner in [owner for owner, failed in owners.items() if now - failed > FAILING]:
            del owners[owner]
        count = sum(len(owners) for each, owners in self._failing.items() if self._store_label(each) == label)
        self._unreachable.labels(label).set(count)

    def _forked(self) -> None:
        """Begin without holds and waits, in a forked child: those are the parent's."""
        for series in self._by_label.values():
            series.held.set(0)
            series.waiting.set(0)
        for store, owners in self._failing.items():
            owners.clear()
            self._count_failing(store)


def _flush_in_time(observer: weakref.ref[PrometheusObserver]) -> None:
    """Work off the buffer, and again later while clients count as failing: they may have been closed."""
    if (found := observer()) is not None:
        found.flush()
        if found._timer is threading.current_thread() and any(found._failing.values()):  # else another one goes on
            found._start_timer()


def _flush(observer: weakref.ref[PrometheusObserver]) -> None:
    if (found := observer()) is not None:
        found.flush()


_writers: weakref.WeakSet[PrometheusObserver] = weakref.WeakSet()
"""Those whose figures go to files, for several processes."""


def _in_child(_: object) -> None:
    util.Finalize(None, flush_at_end, exitpriority=0)


def flush_at_end() -> None:
    """Work off what waits in a child process, which ends without exit handlers; give up after `FLUSH_EVERY` seconds.

    A lock of ``prometheus_client`` may have been taken when the process was forked: then it is never free here.
    """
    waiting = [each for each in _writers if each._timer is not None and each._timer.is_alive()]
    if waiting:
        thread = threading.Thread(target=_flush_each, args=(waiting,), daemon=True)
        thread.start()
        thread.join(FLUSH_EVERY)


def _flush_each(observers: list[PrometheusObserver]) -> None:
    for each in observers:
        each.flush()

"""An observer that counts costs at most five percent of an uncontended acquire and release on Redis."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from leasehold.events import Observer
from leasehold.observability.opentelemetry import OpenTelemetryObserver
from leasehold.observability.prometheus import PrometheusObserver
from leasehold_lab.bench.observers import FLAVORS
from leasehold_lab.servers import RedisServer

MOST = 0.05
ROUNDS = 30
"""Half of those of the documented figures: it is compared with a limit only, and may run again."""


def with_prometheus() -> Observer:
    return PrometheusObserver(CollectorRegistry())


def with_opentelemetry() -> Observer:
    return OpenTelemetryObserver(MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False), spans=False)


@pytest.mark.parametrize("made", [with_prometheus, pytest.param(with_opentelemetry, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_it_costs_at_most_five_percent(flavor: str, made: object) -> None:
    assert callable(made)
    with RedisServer() as server:
        cost = FLAVORS[flavor](server.url, made(), ROUNDS)
    assert cost.share <= MOST, str(cost)

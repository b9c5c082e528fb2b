"""A real Prometheus scrapes a service: each panel of the dashboard has data, and each alert fires once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_server import PrometheusServer, quick

from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.patience import until

HERE = Path(__file__).parent
PAGES = HERE.parents[2] / "docs/integrations/metrics"
RULES, DASHBOARD = PAGES / "alerts.yml", PAGES / "dashboard.json"

VARIABLES = {"$__rate_interval": "1m", "$__range": "1m", "$job": ".*", "$instance": ".*", "$lock": ".*"}
WITHIN = 45.0

ALERTS = frozenset(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


class Watched:
    """A service, its store, and the Prometheus that watches it."""

    def __init__(self, redis: RedisServer, prometheus: PrometheusServer, app: subprocess.Popen[str]) -> None:
        self.redis, self.prometheus, self.app = redis, prometheus, app
        self.fired: set[str] = set()

    def wait_for(self, *alerts: str) -> None:
        def fired() -> bool:
            self.fired |= self.prometheus.firing()
            return self.fired.issuperset(alerts)

        try:
            until(fired, WITHIN)
        except AssertionError as error:
            raise AssertionError(f"not fired: {set(alerts) - self.fired}") from error


@pytest.fixture
def watched() -> Iterator[Watched]:
    port = free_port()
    with RedisServer() as redis:
        command = [sys.executable, str(HERE / "app.py"), redis.url, str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as app:
            try:
                assert app.stdout is not None
                assert app.stdout.readline() == "ready\n"
                with PrometheusServer(port, quick(RULES)) as prometheus:
                    yield Watched(redis, prometheus, app)
            finally:
                app.kill()


def test_each_alert_fires_and_each_panel_has_data(watched: Watched) -> None:
    prometheus, redis, app = watched.prometheus, watched.redis, watched.app
    watched.wait_for("LeaseholdQueueGrows", "LeaseholdTimeouts", "LeaseholdSlowAcquires")
    assert watched.fired.isdisjoint({"LeaseholdLockLost", "LeaseholdStoreDown", "LeaseholdLeaseInDoubt"})

    redis.pause()  # for most of a lease
    time.sleep(3.3)
    redis.resume()
    watched.wait_for("LeaseholdRenewalsLate", "LeaseholdLeaseInDoubt")

    redis.pause()  # for longer
    assert app.stdin is not None
    assert app.stdout is not None
    app.stdin.write("release\n")
    app.stdin.flush()
    assert app.stdout.readline() == "not confirmed\n"
    watched.wait_for("LeaseholdStoreDown", "LeaseholdLockLost", "LeaseholdReleasesUnconfirmed")
    assert watched.fired == ALERTS

    redis.resume()
    until(lambda: "LeaseholdStoreDown" not in prometheus.firing(), WITHIN)
    for title, expression in panels():
        result = prometheus.query(expression)
        assert result, f"{title}: {expression}"
        assert any(float(each["value"][1]) >= 0 for each in result), f"{title}: {result}"
    locks = {each["metric"]["lock"] for each in prometheus.query("leasehold_locks_held")}
    assert locks == {"queue:*", "slow:*", "told:*", "stock:*", "other"}


def panels() -> Iterator[tuple[str, str]]:
    """Yield the title and each expression of the dashboard's panels, with a value for each variable."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def test_the_dashboard_and_the_alerts_know_all_metrics() -> None:
    from prometheus_client import CollectorRegistry

    from leasehold.observability.prometheus import PrometheusObserver

    known = {metric.name for metric in PrometheusObserver(CollectorRegistry()).describe()}
    for text in (RULES.read_text(encoding="utf-8"), *(expression for _, expression in panels())):
        used = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\bleasehold_\w+", text)}
        assert used <= known

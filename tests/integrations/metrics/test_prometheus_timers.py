"""The timer that writes the figures of several processes: it goes on for clients that were closed in an outage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FORGOTTEN = """
import time
from contextlib import suppress
from leasehold import Client, StoreUnavailable
from leasehold.observability import prometheus
prometheus.FAILING = 2.0
observer = prometheus.PrometheusObserver()
with Client.from_url("redis://127.0.0.1:1", observer=observer) as client:
    with suppress(StoreUnavailable):
        client.lock("order:1").acquire()

def unreachable():
    return [sample.value for metric in observer.metrics[-1].collect() for sample in metric.samples]

print(*unreachable())
until = time.monotonic() + 30
while unreachable() != [0.0] and time.monotonic() < until:
    time.sleep(0.05)
print(*unreachable())
"""


def test_with_several_processes_one_that_is_idle_forgets_a_closed_client_by_itself(tmp_path: Path) -> None:
    several = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORGOTTEN], env=several, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "0.0"]


BUSY = """
import threading
import time
from contextlib import suppress
from leasehold import Client, StoreUnavailable
from leasehold.observability.prometheus import PrometheusObserver

observer = PrometheusObserver()
with Client.from_url("redis://127.0.0.1:1", observer=observer) as client, suppress(StoreUnavailable):
    client.lock("order:1").acquire()

most, until = 0, time.monotonic() + 6
with Client.from_url("memory:", observer=observer) as client:
    while time.monotonic() < until:
        for _ in range(100):
            with client.lock("order:1"):
                pass
        most = max(most, sum(thread.name == "leasehold-prometheus" for thread in threading.enumerate()))
print(most)
"""


def test_the_timers_of_a_busy_process_do_not_add_up(tmp_path: Path) -> None:
    """An acquire during a flush starts a timer, too; only the last one goes on while a client counts as failing."""
    several = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", BUSY], env=several, capture_output=True, text=True, check=True)
    assert 1 <= int(done.stdout) <= 4

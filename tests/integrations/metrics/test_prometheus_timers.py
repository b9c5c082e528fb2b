"""With several processes: the timer that writes their figures, and what is written when a process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


CHILDREN = """
import multiprocessing
import os
import sys
import time
from prometheus_client import CollectorRegistry, multiprocess
from leasehold import Client
from leasehold.observability.prometheus import PrometheusObserver

_, path, how = sys.argv
observer = PrometheusObserver()
locks = Client.from_url("sqlite:" + path, observer=observer)

def work():
    client = locks
    if how == "made in the child":
        client = Client.from_url("sqlite:" + path, observer=PrometheusObserver(CollectorRegistry()))
    for _ in range(0 if how == "idle" else 3):
        with client.lock("order:1"):
            pass
    if how == "stuck":
        observer.flush = lambda: time.sleep(60)

with locks.lock("order:2"):  # a child does not count what waits in its parent
    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(30)
        assert child.exitcode == 0, child.exitcode
observer.flush()
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(registry.get_sample_value("leasehold_locks_acquired_total", {"lock": "order:*"}))
print(sum(str(child.pid) in name for name in os.listdir(os.environ["PROMETHEUS_MULTIPROC_DIR"])))
"""


@pytest.mark.parametrize(
    ("how", "acquired", "files"),
    [("busy", 7, 3), ("made in the child", 7, 3), ("idle", 1, 0), ("stuck", 1, 0)],
)
def test_a_child_of_multiprocessing_writes_its_figures_when_it_ends(
    tmp_path: Path, how: str, acquired: int, files: int
) -> None:
    """It runs no exit handlers. One that used no lock writes nothing, and none waits for ever.

    A lock of `prometheus_client` may have been taken when the child was forked, and is never free then.
    """
    (figures := tmp_path / "figures").mkdir()
    several = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(figures)}
    command = [sys.executable, "-c", CHILDREN, str(tmp_path / "locks.db"), how]
    done = subprocess.run(command, env=several, capture_output=True, text=True, check=True)
    assert [float(line) for line in done.stdout.split()] == [acquired, files], done.stderr


POOL_PROCESS = """
import os
import sys
from celery import Celery, signals
from prometheus_client import CollectorRegistry, multiprocess
from leasehold.integrations.celery import locked_task
from leasehold.observability.prometheus import PrometheusObserver

app = Celery("shop", broker="memory://")
app.conf.update(leasehold_url="sqlite:" + sys.argv[1], leasehold_observer=PrometheusObserver())

@locked_task(app, name="order:{order}")
def ship(order): ...

if (pid := os.fork()) == 0:
    ship(7)
    signals.worker_process_shutdown.send(sender=None, pid=os.getpid(), exitcode=0)
    os._exit(0)
os.waitpid(pid, 0)
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(registry.get_sample_value("leasehold_lock_hold_duration_seconds_count", {"lock": "order:*"}))
print(registry.get_sample_value("leasehold_locks_held", {"lock": "order:*"}))
"""


def test_a_pool_process_of_celery_writes_its_figures_when_it_ends(tmp_path: Path) -> None:
    """It ends by `os._exit`, as with ``max_tasks_per_child``."""
    (figures := tmp_path / "figures").mkdir()
    several = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(figures)}
    command = [sys.executable, "-c", POOL_PROCESS, str(tmp_path / "locks.db")]
    done = subprocess.run(command, env=several, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "0.0"], done.stderr

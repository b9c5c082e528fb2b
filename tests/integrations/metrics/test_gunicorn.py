"""Workers of gunicorn, forked after the application was loaded, are scraped as one."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from leasehold_lab.servers.base import free_port
from support.patience import until

APP = """
import os
from leasehold import Client
from leasehold.observability.prometheus import PrometheusObserver
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

locks = Client.from_url("sqlite:" + os.environ["LOCKS"], observer=PrometheusObserver())
held = locks.lock("of the master").acquire()  # before the fork: no worker holds it

def app(environ, start_response):
    if environ["PATH_INFO"] == "/metrics":
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        body = generate_latest(registry)
    else:
        with locks.lock("order:1"):
            body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""


def test_the_figures_of_all_workers_are_one_scrape(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    port, figures = free_port(), tmp_path / "figures"
    figures.mkdir()
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(figures), "LOCKS": str(tmp_path / "locks.db")}
    command = [sys.executable, "-m", "gunicorn", "app:app", "--preload", "-w", "2", "-b", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: answer(port, "/") is not None, 30)
            pids = {answer(port, "/") for _ in range(40)}
            assert len(pids) == 2, "both workers answered"
            until(lambda: value(port, 'leasehold_locks_acquired_total{lock="order:*"}') == 41, 20)
            assert value(port, 'leasehold_lock_hold_duration_seconds_count{lock="order:*"}') == 41
            assert value(port, 'leasehold_locks_held{lock="order:*"}') == 0
            assert value(port, 'leasehold_locks_held{lock="of the master"}') == 1, "the master's, not the workers'"
        finally:
            server.terminate()
    assert server.returncode == 0


def answer(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.read().decode()
    except OSError:
        return None


def value(port: int, series: str) -> float | None:
    lines = (answer(port, "/metrics") or "").splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)), None)

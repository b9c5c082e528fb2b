"""Workers of gunicorn, forked after the application was loaded, are scraped as one."""

from __future__ import annotations

import os
import socket
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
            pids = {*answers_of_both(port), *answers_of_both(port)}
            assert len(pids) == 2, "both workers answered"
            until(lambda: value(port, 'leasehold_locks_acquired_total{lock="order:*"}') == 5, 20)
            assert value(port, 'leasehold_lock_hold_duration_seconds_count{lock="order:*"}') == 5
            assert value(port, 'leasehold_locks_held{lock="order:*"}') == 0
            assert value(port, 'leasehold_locks_held{lock="of the master"}') == 1, "the master's, not the workers'"
        finally:
            server.terminate()
    assert server.returncode == 0


def answers_of_both(port: int) -> tuple[str | None, str | None]:
    """What each of the two workers answers: the one that has half a request cannot take the next one."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as half:
        half.sendall(b"GET / HTTP/1.0\r\n")
        other = answer(port, "/")
        half.sendall(b"\r\n")
        return half.makefile("rb").read().rpartition(b"\r\n\r\n")[2].decode(), other


def answer(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.read().decode()
    except OSError:
        return None


def value(port: int, series: str) -> float | None:
    lines = (answer(port, "/metrics") or "").splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)), None)

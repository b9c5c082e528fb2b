"""A signal handler that calls leasehold:

whatever it interrupts, it works or raises at once, and the watchdog goes on.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

SIGNALS = 400
NIGHTLY = 10_000

IN_PROCESS = {"memory": "memory:", "sqlite": "sqlite:{}/locks.db"}
SERVERS = {
    "redis": ("redis_server", ""),
    "replicas": ("redis_replicas", ""),
    "sentinel": ("redis_sentinel", ""),
    "cluster": ("redis_cluster", ""),
    "redlock": ("redlock_nodes", ""),
    "zookeeper": ("zookeeper_server", ""),
    "etcd": ("etcd_server", ""),
    "postgres": ("postgres_server", ""),
    "postgres-session": ("postgres_server", "?mode=session"),
    "mariadb": ("mariadb_url", ""),
    "mariadb-session": ("mariadb_url", "?mode=session"),
}
"""The fixture that starts a server, and what is added to its URL."""

STORM = """
    import signal, sys, threading, time
    from leasehold import Client, StoreUnavailable

    url, wanted = sys.argv[1], int(sys.argv[2])
    LEASE = 3.0  # seconds; a busy machine takes the watchdog off its processor for one
    client, count, refused = Client.from_url(url, namespace="storm"), 0, 0
    kept = client.lock("kept", lease=LEASE).acquire()
    spare = client.lock("spare", lease=LEASE).acquire()

    def handler(number, frame):
        global count, refused, spare
        count += 1
        try:
            spare.release()
            kept.raise_if_lost()
            got = client.lock("spare", lease=LEASE).acquire(timeout=0)
            spare = got or spare
        except RuntimeError as error:
            assert "signal handler" in str(error), error
            refused += 1

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    while count < wanted:
        with client.lock("name", lease=LEASE):
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(LEASE + 0.5)
    kept.raise_if_lost()
    client.close()
    print(count, refused)
"""


def storm(store: str, signals: int, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[int, int]:
    """Return how many signals struck a program that locks on ``store``, and in how many a call was refused."""
    if store in IN_PROCESS:
        url = IN_PROCESS[store].format(tmp_path)
    else:
        fixture, suffix = SERVERS[store]
        server = request.getfixturevalue(fixture)
        url = (server if isinstance(server, str) else server.url) + suffix
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STORM), url, str(signals)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60 + signals * 0.02,
    )
    assert run.returncode == 0, run.stderr
    struck, refused = map(int, run.stdout.split())
    assert struck >= signals
    return struck, refused


@pytest.mark.timeout(90)
@pytest.mark.parametrize("store", [*IN_PROCESS, *SERVERS])
def test_a_storm_of_signals_hangs_nothing(
    store: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    struck, refused = storm(store, SIGNALS, tmp_path, request)
    record_property("sum:signals", struck)
    assert refused > 0, "none of them struck in the middle of a call"


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("store", [*IN_PROCESS, *SERVERS])
def test_a_long_storm_of_signals_hangs_nothing(
    store: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    struck, refused = storm(store, NIGHTLY, tmp_path, request)
    record_property("sum:signals", struck)
    assert refused > 0, "none of them struck in the middle of a call"

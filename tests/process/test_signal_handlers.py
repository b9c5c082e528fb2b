"""A signal handler that calls leasehold: whatever it interrupts, it works or raises at once, and the keeper goes on."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SIGNALS = 400

STORM = """
    import signal, sys, threading, time
    from leasehold import Client, StoreUnavailable

    url, wanted = sys.argv[1], int(sys.argv[2])
    client, count, refused = Client.from_url(url, namespace="storm"), 0, 0
    kept = client.lock("kept", lease=1.0).acquire()
    spare = client.lock("spare", lease=1.0).acquire()

    def handler(number, frame):
        global count, refused, spare
        count += 1
        try:
            spare.release()
            kept.check()
            got = client.lock("spare", lease=1.0).acquire(timeout=0)
            spare = got or spare
        except RuntimeError as error:
            assert "signal handler" in str(error), error
            refused += 1

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    while count < wanted:
        with client.lock("name", lease=1.0):
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(1.2)
    kept.check()
    client.close()
    print(count, refused)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_a_storm_of_signals_hangs_nothing(store: str, tmp_path: object, request: pytest.FixtureRequest) -> None:
    url = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/locks.db"}.get(store)
    url = url or request.getfixturevalue("redis_server").url
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STORM), url, str(SIGNALS)],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert run.returncode == 0, run.stderr
    signals, refused = map(int, run.stdout.split())
    assert signals >= SIGNALS
    assert refused > 0, "none of them struck in the middle of a call"

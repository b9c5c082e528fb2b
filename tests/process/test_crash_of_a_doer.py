"""A client that works for all is killed in the middle: another does the work, within the bound, in order."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import leasehold
from leasehold import AcquireTimeout, Client
from leasehold_lab.servers import RedisServer

LEASE = 1.0
BOUND = {"redis": LEASE + 0.25, "sqlite": 1.0}
"""Seconds after which a dead holder's lock is free."""

NOISE = 1.0
"""Seconds that a busy machine may be late."""

PROGRAM = """
import sys, time
from leasehold import Client

def work():
    print("began", flush=True)
    time.sleep(60)

with Client.from_url(sys.argv[1], namespace=sys.argv[2]) as client:
    {call}
"""


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return the store's kind and URL."""
    request.node.user_properties.append((f"store:{request.param}", True))
    if request.param == "sqlite":
        return "sqlite", f"sqlite:{tmp_path}/locks.db"
    server: RedisServer = request.getfixturevalue("redis_server")
    return "redis", server.url


@contextmanager
def at_work(call: str, url: str, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process until it says that its work began."""
    environment = {**os.environ, "PYTHONPATH": str(Path(leasehold.__file__).parents[1])}
    program = textwrap.dedent(PROGRAM).format(call=call)
    command = [sys.executable, "-c", program, url, namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            yield process
        finally:
            process.kill()


def test_a_payment_is_done_by_another(place: tuple[str, str], namespace: str) -> None:
    kind, url = place
    call = f"client.once('payment', ttl=60, lease={LEASE}).run(work)"
    with at_work(call, url, namespace) as process, Client.from_url(url, namespace=namespace) as client:
        with pytest.raises(AcquireTimeout):
            client.once("payment", ttl=60, timeout=0.3).run(lambda: "too early")
        process.kill()
        start = time.monotonic()
        assert client.once("payment", ttl=60, timeout=30).run(lambda: "done here") == "done here"
        assert time.monotonic() - start < BOUND[kind] + NOISE


def test_a_token_is_fetched_by_another(place: tuple[str, str], namespace: str) -> None:
    kind, url = place
    call = f"client.cached('token', 60, work, lease={LEASE}).get()"
    with at_work(call, url, namespace) as process, Client.from_url(url, namespace=namespace) as client:
        process.kill()
        start = time.monotonic()
        assert client.cached("token", 60, lambda: "fetched here", timeout=30).get() == "fetched here"
        assert time.monotonic() - start < BOUND[kind] + NOISE


def test_the_old_token_serves_on_while_the_fetcher_is_dead(place: tuple[str, str], namespace: str) -> None:
    _, url = place
    with Client.from_url(url, namespace=namespace) as client:
        shared = client.cached("token", 60, lambda: "fetched here", early=59.5)
        shared.get()
        time.sleep(0.6)
        call = "client.cached('token', 60, work, early=59.5, lease=600).get()"
        with at_work(call, url, namespace) as process:
            for dead in (False, True):
                if dead:
                    process.kill()
                    process.wait(10)
                start = time.monotonic()
                assert shared.get() == "fetched here"
                assert time.monotonic() - start < NOISE


def test_a_tick_is_not_run_twice_after_a_crash_and_the_next_is(place: tuple[str, str], namespace: str) -> None:
    kind, url = place
    call = f"client.scheduled('mail', at_least=3, at_most={LEASE}).run(work)"
    with at_work(call, url, namespace) as process, Client.from_url(url, namespace=namespace) as client:
        start = time.monotonic()
        process.kill()
        process.wait(10)
        mail = client.scheduled("mail", at_least=3, at_most=LEASE)
        while time.monotonic() < start + BOUND[kind] + 0.5:  # the lock is free by now, the tick is not
            assert not mail.run(print)
            time.sleep(0.1)
        time.sleep(max(0.0, start + 3.2 - time.monotonic()))
        assert mail.run(print)

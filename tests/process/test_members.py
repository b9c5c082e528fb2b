"""Members of a barrier and counters of a latch are real processes, killed and stopped: the others are notified."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import leasehold
from leasehold import BrokenBarrier, Client
from leasehold.primitives.coordination.barrier_members import CHECK_EVERY
from leasehold_lab.servers import RedisServer

LEASE = 1.0
NOISE = 1.5
"""Seconds that a busy machine may be late."""

BOUND = LEASE + 0.25 + 2 * CHECK_EVERY + NOISE
"""Seconds after which a dead member is noticed: its lease, a look of the second in line, and noise."""

MEMBER = """
import sys, time
from leasehold import Client
url, namespace, stage = sys.argv[1:]
client = Client.from_url(url, namespace=namespace)
barrier = client.barrier("phase", {parties}, lease={lease}, drop_dead={drop_dead})
def say(what):
    print(what, flush=True)
if stage == "waiting":
    from leasehold.primitives.coordination.barrier_members import Members
    until_met = Members._until_met
    def arrived(self, *args):
        say("began")
        return until_met(self, *args)
    Members._until_met = arrived
    barrier.wait()
    say("met")
elif stage == "inside":
    barrier.enter()
    say("began")
    time.sleep(60)
elif stage == "leaving":
    from leasehold.primitives.coordination.barrier_members import Members
    until_left = Members._until_left
    def departed(self, *args):
        say("began")
        return until_left(self, *args)
    Members._until_left = departed
    barrier.enter()
    barrier.leave()
    say("met")
"""

COUNTER = """
import sys
from leasehold import Client
url, namespace, number = sys.argv[1:]
with Client.from_url(url, namespace=namespace) as client:
    latch = client.latch("parts", 40)
    for _ in range(10):
        print(latch.count_down(), flush=True)
"""


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the store's URL."""
    request.node.user_properties.append((f"store:{request.param}", True))
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/locks.db"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(leasehold.__file__).parents[1])}
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def member(url: str, namespace: str, stage: str, *, parties: int = 2, drop_dead: bool = False):  # type: ignore[no-untyped-def]
    return process(MEMBER.format(parties=parties, lease=LEASE, drop_dead=drop_dead), url, namespace, stage)


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_one_killed_as_it_waits_breaks_the_barrier(url: str, namespace: str) -> None:
    with member(url, namespace, "waiting", parties=3) as victim, Client.from_url(url, namespace=namespace) as client:
        assert said(victim) == "began"
        threading.Timer(0.3, victim.kill).start()
        start = time.monotonic()
        barrier = client.barrier("phase", 3, lease=LEASE)
        with pytest.raises(BrokenBarrier, match="died"):
            barrier.wait(timeout=30)
        assert time.monotonic() - start < 0.3 + BOUND
        assert barrier.broken()


def test_one_killed_as_it_waits_is_left_out(url: str, namespace: str) -> None:
    with (
        member(url, namespace, "waiting", drop_dead=True) as victim,
        Client.from_url(url, namespace=namespace) as client,
    ):
        assert said(victim) == "began"
        victim.kill()
        victim.wait(10)
        time.sleep(LEASE + 0.5)  # until its lease has ended it may count as one who has come
        with member(url, namespace, "waiting", drop_dead=True) as other:
            start = time.monotonic()
            client.barrier("phase", 2, lease=LEASE, drop_dead=True).wait(timeout=30)
            assert time.monotonic() - start < BOUND + 1.0, "and the time that a process takes to start"
            assert [said(other), said(other)] == ["began", "met"]


def test_one_killed_inside_is_noticed_by_those_who_leave(url: str, namespace: str) -> None:
    with member(url, namespace, "inside") as victim, Client.from_url(url, namespace=namespace) as client:
        barrier = client.barrier("phase", 2, lease=LEASE)
        barrier.enter(timeout=30)
        assert said(victim) == "began"
        victim.kill()
        start = time.monotonic()
        with pytest.raises(BrokenBarrier, match="died"):
            barrier.leave(timeout=30)
        assert time.monotonic() - start < BOUND


def test_those_who_leave_go_without_the_dead(url: str, namespace: str) -> None:
    with (
        member(url, namespace, "inside", drop_dead=True) as victim,
        Client.from_url(url, namespace=namespace) as client,
    ):
        barrier = client.barrier("phase", 2, lease=LEASE, drop_dead=True)
        barrier.enter(timeout=30)
        assert said(victim) == "began"
        victim.kill()
        start = time.monotonic()
        barrier.leave(timeout=30)
        assert time.monotonic() - start < BOUND


def test_one_killed_as_it_leaves_does_not_matter(url: str, namespace: str) -> None:
    with member(url, namespace, "leaving") as victim, Client.from_url(url, namespace=namespace) as client:
        barrier = client.barrier("phase", 2, lease=LEASE)
        barrier.enter(timeout=30)
        assert said(victim) == "began"
        victim.kill()
        victim.wait(10)
        barrier.leave(timeout=5)
        assert not barrier.broken()


def test_one_that_is_stopped_breaks_the_barrier_and_is_told(url: str, namespace: str) -> None:
    with member(url, namespace, "waiting", parties=3) as victim, Client.from_url(url, namespace=namespace) as client:
        assert said(victim) == "began"
        victim.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(BrokenBarrier, match="died"):
            client.barrier("phase", 3, lease=LEASE).wait(timeout=30)
        assert time.monotonic() - start < BOUND
        victim.send_signal(signal.SIGCONT)
        assert victim.wait(20) == 1, "it raises BrokenBarrier"
        assert said(victim) == "", "and did not report a meeting"


def test_counters_are_killed_and_no_count_is_lost_or_doubled(url: str, namespace: str) -> None:
    """One is killed in the middle: what it said it counted is counted, and at most one more."""
    with Client.from_url(url, namespace=namespace) as client:
        latch = client.latch("parts", 40)
        with process(COUNTER, url, namespace, "victim") as victim:
            told = [said(victim) for _ in range(3)]
            victim.kill()
            assert victim.stdout is not None
            told += [line for line in victim.stdout.read().split() if line]
        before = 40 - latch.count()
        assert len(told) <= before <= len(told) + 1
        with process(COUNTER, url, namespace, "a") as one, process(COUNTER, url, namespace, "b") as other:
            assert one.wait(30) == other.wait(30) == 0
        assert latch.count() == 40 - before - 20
        waits = threading.Thread(target=latch.wait, args=(30,))
        waits.start()
        latch.count_down(latch.count())
        start = time.monotonic()
        waits.join(30)
        assert time.monotonic() - start < 0.25 + NOISE

"""A cluster of three members: with killed leaders and stopped members no two holds overlap."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import pytest

from leasehold import Client, LeaseLost, StoreUnavailable
from leasehold_lab.servers import EtcdCluster

LEASE = 3.0
NOISE = 2.0
ELECTION = 2.0
"""Seconds in which three members have a new leader, with the timers of the test servers and a busy machine."""


@pytest.fixture
def cluster():
    with EtcdCluster() as running:
        yield running


class Shop:
    """Threads that take turns at one lock, each with a client of its own, and note when they were inside."""

    def __init__(self, url: str, workers: int = 3) -> None:
        self.over = threading.Event()
        self.tokens: list[int] = []
        self.lost = self.failed = 0
        self.inside: str | None = None
        self.wrong: list[str] = []
        self.threads = [threading.Thread(target=self.work, args=(url, f"w{number}")) for number in range(workers)]

    def work(self, url: str, who: str) -> None:
        with Client.from_url(url, response_timeout=2.0) as locks:
            while not self.over.is_set():
                try:
                    with locks.lock("x", lease=LEASE, timeout=30) as hold:
                        self.visit(who, hold)
                except LeaseLost:
                    self.lost += 1
                except StoreUnavailable:
                    self.failed += 1
                    time.sleep(0.05)

    def visit(self, who: str, hold) -> None:
        if self.inside is not None and hold.remaining > 0:
            self.wrong.append(f"{who} entered beside {self.inside}")
        self.inside = who
        self.tokens.append(hold.token)
        time.sleep(0.005)
        if hold.remaining > 0:
            if self.inside != who:
                self.wrong.append(f"{self.inside} entered beside {who}")
            self.inside = None
        elif self.inside == who:
            self.inside = None

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        for thread in self.threads:
            thread.join()


def leader_killed(cluster: EtcdCluster, times: int) -> Shop:
    with Client.from_url(cluster.url, response_timeout=2.0) as locks:
        held = locks.lock("held", lease=10.0).acquire()
        findings = {finding.subject: finding for finding in locks.diagnose()}
        assert findings["members"].found == "3 voting"
        assert findings["members"].meaning == "locks survive the loss of 1"
        roles = sorted(findings[f"member 127.0.0.1:{one.port}"].found.partition(",")[0] for one in cluster.members)
        assert roles == ["follower", "follower", "leader"]
        with Shop(cluster.url) as shop:
            for _ in range(times):
                leader = cluster.leader()
                leader.kill()
                time.sleep(0.3)
                cluster.leader()
                time.sleep(0.5)
                leader.start()
                before = len(shop.tokens)
                until = time.monotonic() + LEASE + ELECTION + NOISE
                while len(shop.tokens) < before + 3:
                    assert time.monotonic() < until, "no client makes progress"
                    time.sleep(0.02)
        held.raise_if_lost()
        held.release()
    assert shop.wrong == []
    assert shop.tokens == sorted(set(shop.tokens))
    assert all(member.keys("leasehold/default/lock/x/") == [] for member in cluster.members)
    return shop


def test_the_leader_is_killed_again_and_again(cluster):
    shop = leader_killed(cluster, 3)
    assert len(shop.tokens) > 50


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_leader_is_killed_fifty_times(cluster):
    shop = leader_killed(cluster, 50)
    print(f"{len(shop.tokens)} holds, {shop.lost} lost, {shop.failed} refused")


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_stopped_member_delays_requests_and_breaks_no_hold(cluster, which):
    """Stopped in its tracks, its connections stay open: clients turn to the others, and it changes nothing later."""
    with Shop(cluster.url) as shop:
        time.sleep(0.5)
        leader = cluster.leader()
        member = leader if which == "leader" else next(one for one in cluster.members if one is not leader)
        member.pause()
        time.sleep(ELECTION + 0.5)
        before = len(shop.tokens)
        until = time.monotonic() + LEASE + ELECTION + NOISE
        while len(shop.tokens) < before + 10:
            assert time.monotonic() < until, "no client makes progress"
            time.sleep(0.02)
        member.resume()
        time.sleep(1.0)
    assert shop.lost == 0
    assert shop.wrong == []
    assert shop.tokens == sorted(set(shop.tokens))


def test_members_are_stopped_and_killed_at_random(cluster):
    chance = random.Random(4)
    with Shop(cluster.url) as shop:
        for _ in range(6):
            member = chance.choice(cluster.members)
            if chance.random() < 0.5:
                member.pause()
                time.sleep(chance.uniform(0.2, 1.2))
                member.resume()
            else:
                member.kill()
                time.sleep(chance.uniform(0.0, 0.5))
                member.start()
    assert shop.wrong == []
    assert shop.tokens == sorted(set(shop.tokens))


def test_the_lock_of_a_dead_holder_is_free_after_two_leases_if_the_leader_changes(cluster):
    """A new leader begins all leases anew."""
    code = (
        "import os, sys, leasehold\n"
        "leasehold.Client.from_url(sys.argv[1]).lock('x', lease=float(sys.argv[2])).acquire()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, cluster.url, str(LEASE)], check=True, timeout=60)
    with Client.from_url(cluster.url) as locks:
        start = time.monotonic()
        time.sleep(1.0)
        leader = cluster.leader()
        leader.kill()
        locks.lock("x").acquire(timeout=30).release()
        took = time.monotonic() - start
        leader.start()
    print(f"free {took:.1f} s after the crash, with a lease of {LEASE} s and a change of leader after 1 s")
    assert took < 1.0 + ELECTION + LEASE + 1.0 + NOISE

"""Holders that are killed, stopped or forked: the lock is free within the bound, and a holder is notified in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold import Client, LeaseLost
from leasehold._model import Change
from leasehold._runtimes.base import finish

PARTY = str(Path(__file__).parents[2] / "support" / "programs" / "redis_client.py")

LATE = 1.0
"""Seconds after a lease within which etcd gives the lock away: it looks twice a second which leases have ended."""

NOISE = 1.0

flavors = pytest.mark.parametrize("flavor", ["blocking", "asyncio"])


@contextmanager
def party(server, namespace, flavor, role, lease, *names):
    command = [sys.executable, PARTY, flavor, server.url, namespace, role, str(lease), *names]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def hear(process):
    while True:
        said = json.loads(process.stdout.readline())
        if "role" not in said:
            return said


@flavors
def test_a_killed_holders_locks_are_free_within_the_bound(etcd_server, namespace, flavor):
    names, lease = [f"job-{number}" for number in range(10)], 2.0
    with party(etcd_server, namespace, flavor, "hold", lease, *names) as holder:
        tokens = {}
        while len(tokens) < len(names):
            said = hear(holder)
            tokens[said["name"]] = said["token"]
        with Client.from_url(etcd_server.url, namespace=namespace) as locks:
            time.sleep(0.7 * lease)  # it renews
            holder.kill()
            killed = time.monotonic()
            for name in names:
                hold = locks.lock(name).acquire(timeout=30)
                assert hold.token > tokens[name]
                hold.release()
            took = time.monotonic() - killed
            print(f"free {took:.2f} s after the kill, with a lease of {lease} s")
            assert took < lease + LATE + NOISE
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


@flavors
def test_a_holder_that_was_stopped_beyond_its_lease(etcd_server, namespace, flavor):
    lease = 1.0
    with (
        party(etcd_server, namespace, flavor, "stop", lease, "x") as stopped,
        Client.from_url(etcd_server.url, namespace=namespace) as locks,
    ):
        token = hear(stopped)["token"]
        os.kill(stopped.pid, signal.SIGSTOP)
        start = time.monotonic()
        successor = locks.lock("x", lease=5.0).acquire(timeout=20)
        assert time.monotonic() - start < lease + LATE + NOISE
        assert successor.token > token
        assert finish(locks.store.compare_and_set("x:data", Change(b"new", fence=successor.token))).changed
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.stdin.write(b"\n")
        stopped.stdin.flush()
        said = hear(stopped)
        assert said["check"] == "lost"
        assert said["written"] is False
        assert said["release"] == "lost"
        time.sleep(1.0)  # for requests that it still has to send
        successor.raise_if_lost()
        successor.renew()
        assert finish(locks.store.compare_and_set("x:data", Change())).value == b"new"
        assert successor.release()


def test_a_forked_child_leaves_the_parents_hold_alone_and_can_lock(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x", lease=2.0).acquire()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert hold.lost
                with pytest.raises(LeaseLost):
                    hold.release()
                assert locks.lock("x").acquire(timeout=0.2) is None
                with locks.lock("y", lease=2.0, timeout=10) as mine:
                    mine.raise_if_lost()
                locks.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0
        time.sleep(1.5)
        hold.raise_if_lost()
        assert hold.release() is True


def test_an_interpreter_that_ends_releases(etcd_server, namespace):
    code = (
        "import sys, leasehold\n"
        "locks = leasehold.Client.from_url(sys.argv[1], namespace=sys.argv[2])\n"
        "with locks.lock('x') as hold: print(hold.token)\n"
        "locks.close()\n"
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code, etcd_server.url, namespace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_the_demo_counts_right(etcd_server, namespace):
    code = "from leasehold_lab.commands.demo import demo\ndemo(prog_name='leasehold demo')\n"
    command = [sys.executable, "-c", code, "--url", etcd_server.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["row"]: row for row in json.loads(done.stdout)["rows"]}
    assert (rows["leasehold"]["final"], rows["leasehold"]["errors"]) == (666, 0)
    assert rows["leasehold"]["overlapping_pairs"] == 0
    assert rows["none"]["lost"] > 0

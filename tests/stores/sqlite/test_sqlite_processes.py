"""Several processes with one SQLite file: exclusion, and how they wake one another."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_peers import Peer, boottime

from leasehold import Client, StoreUnavailable
from leasehold.stores.sqlite import waiting
from leasehold.stores.sqlite.waiting import HintReceiver

WORKER = """
import asyncio, sys, time
from pathlib import Path
from leasehold import AsyncClient, Client
url, shared, rounds, flavor = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def work(token):
    entered = time.clock_gettime(time.CLOCK_BOOTTIME)
    count, last = map(int, shared.read_text().split())
    assert token > last
    time.sleep(0.002)
    shared.write_text(f"{count + 1} {token}")
    print(token, entered, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)

async def tasks():
    async with AsyncClient.from_url(url) as locks:
        for _ in range(rounds):
            async with locks.lock("count") as hold:
                work(hold.token)

if flavor == "asyncio":
    asyncio.run(tasks())
else:
    with Client.from_url(url) as locks:
        for _ in range(rounds):
            with locks.lock("count") as hold:
                work(hold.token)
"""


def contend(path: Path, rounds: int, flavors: list[str]) -> list[tuple[int, float, float, int]]:
    """Let processes count under the lock; return (token, entered, left, process) by token."""
    shared = path.parent / "count"
    shared.write_text("0 0")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, f"sqlite:{path}", str(shared), str(rounds), flavor],
            stdout=subprocess.PIPE,
            text=True,
        )
        for flavor in flavors
    ]
    records = []
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for line in output.splitlines():
            token, entered, left = line.split()
            records.append((int(token), float(entered), float(left), number))
    assert shared.read_text().split()[0] == str(rounds * len(flavors))
    return sorted(records)


def test_counts_correctly_over_processes(path: Path) -> None:
    records = contend(path, 50, ["blocking", "asyncio", "blocking", "asyncio"])
    assert len({token for token, *_ in records}) == 200
    for (_, _, left, _), (_, entered, _, _) in itertools.pairwise(records):
        assert left <= entered


@pytest.mark.parametrize("flavors", [["blocking", "blocking"], ["asyncio", "blocking"]], ids="-".join)
def test_a_release_wakes_the_next_process_long_before_its_own_check(path: Path, flavors: list[str]) -> None:
    records = contend(path, 200, flavors)  # how often they alternate, the scheduler decides
    pauses = [later[1] - earlier[2] for earlier, later in itertools.pairwise(records) if earlier[3] != later[3]]
    assert len(pauses) >= 50
    assert statistics.median(pauses) < 0.25 / 5  # a hint that is lost costs a quarter of a second


def test_lost_hints_cost_a_quarter_of_a_second(path: Path, locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    peer.ask("setattr(__import__('leasehold.stores.sqlite.waiting').stores.sqlite.waiting, '_send', lambda *a: None)")
    peer.ask("take('x')")
    threading.Timer(0.3, lambda: peer.tell("holds['x'].release()")).start()
    began = boottime()
    with locks.lock("x", timeout=5):
        assert 0.3 <= boottime() - began < 0.3 + 0.25 + 0.35


def test_without_a_socket_waiters_poll(
    locks: Client, peers: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_loopback", lambda: None)
    peer = peers()
    peer.ask("take('x')")
    threading.Timer(0.3, lambda: peer.tell("holds['x'].release()")).start()
    began = boottime()
    with locks.lock("x", timeout=5):
        assert boottime() - began < 0.3 + 0.25 + 0.35


def test_forged_hints_do_no_harm(locks: Client) -> None:
    with locks.lock("x"):
        got: list[object] = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("x").acquire(timeout=0.6)))
        waiter.start()
        time.sleep(0.1)
        address = next(iter(waiting._receivers))
        for _ in range(300):
            waiting._send(int(address.split()[1]), os.urandom(38))
            for ticket in list(locks.store._waiters._waiting):  # type: ignore[attr-defined]
                waiting._send(int(address.split()[1]), bytes.fromhex(address.split()[2]) + ticket.encode())
        waiter.join()
        assert got == [None]


def test_an_acquire_and_the_ending_notification_thread_do_not_deadlock(
    path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has the database and wants the bell's thread; that one, about to end, must not want the database."""
    registered, ending, end, listen = threading.Event(), threading.Event(), HintReceiver._ends_idle, HintReceiver.listen

    def end_late(bell: HintReceiver) -> bool:
        ending.set()
        registered.wait(5)
        return end(bell)

    def listen_late(bell: HintReceiver) -> str | None:
        registered.set()
        time.sleep(0.3)
        return listen(bell)

    monkeypatch.setattr(waiting, "IDLE_CHECKS", 1)
    monkeypatch.setattr(HintReceiver, "_ends_idle", end_late)
    with Client.from_url(f"sqlite:{path}") as holder, holder.lock("x"):
        assert locks.lock("x").acquire(timeout=0.05) is None
        assert ending.wait(5)
        monkeypatch.setattr(HintReceiver, "listen", listen_late)
        results: list[object] = []
        waiter = threading.Thread(target=lambda: results.append(locks.lock("x").acquire(timeout=0.5)), daemon=True)
        waiter.start()
        waiter.join(5)
        assert results == [None]


def test_a_failed_acquire_leaves_no_waiter(path: Path, locks: Client) -> None:
    with Client.from_url(f"sqlite:{path}") as holder, holder.lock("x"):
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON entry BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(StoreUnavailable):
            locks.lock("x").acquire(timeout=1)
        assert not locks.store._waiters._waiting  # type: ignore[attr-defined]

"""Holders and waiters of a SQLite file that are killed or stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_peers import Peer, boottime, raw

from leasehold import Client
from leasehold._model import Change, Granted, Kind, LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold._runtimes.base import finish
from support.patience import until


@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
@pytest.mark.parametrize("fair", [False, True], ids=["any", "fair"])
def test_killed_holder(locks: Client, peers: Callable[..., Peer], reaped: bool, fair: bool) -> None:
    peer = peers()
    token = peer.ask("take('x', lease=60)")
    assert locks.lock("x").acquire(timeout=0.05) is None
    killed: list[float] = []

    def kill() -> None:
        peer.process.kill()
        killed.append(boottime())
        if reaped:
            peer.process.wait()

    threading.Timer(0.3, kill).start()
    with locks.lock("x", timeout=5, fair=fair) as hold:
        assert boottime() - killed[0] < 1.0
        assert hold.token > token


def test_killed_holder_of_a_name_long_held(path: Path, locks: Client, peers: Callable[..., Peer]) -> None:
    """A waiter writes the row of a name that was not used for long; the holder in it keeps its process."""
    peer = peers()
    peer.ask("take('x', lease=60)")
    raw(path, "UPDATE name SET used = used - 700000000000")
    assert locks.lock("x").acquire(timeout=0.05) is None
    assert raw(path, "SELECT used > ? FROM name", round((boottime() - 600) * 1e9)) == [[1]]
    peer.process.kill()
    killed = boottime()
    with locks.lock("x", timeout=5):
        assert boottime() - killed < 1.0


@pytest.mark.parametrize("side", ["reader", "upgradeable", "writer"])
def test_killed_side_of_a_read_write_lock(locks: Client, peers: Callable[..., Peer], side: str) -> None:
    peer, lock = peers(), locks.rw_lock("x")
    token = peer.ask(f"holds.setdefault('x', locks.rw_lock('x', lease=60).{side}().acquire()).token")
    assert lock.writer().acquire(timeout=0.05) is None
    peer.process.kill()
    killed = boottime()
    with lock.writer() as hold:
        assert boottime() - killed < 1.0
        assert hold.token > token


def test_killed_while_it_upgrades(locks: Client, peers: Callable[..., Peer]) -> None:
    """Neither its entry nor its place in the queue stands in the way of others."""
    peer, reader = peers(), locks.rw_lock("x").reader().acquire()
    assert reader is not None
    peer.ask("holds.setdefault('x', locks.rw_lock('x', lease=60).upgradeable().acquire()).token")
    peer.ask("threading.Thread(target=holds['x'].upgrade, daemon=True).start()")
    until = boottime() + 5.0
    while len(locks.holds("x")[0].waiters) < 1 and boottime() < until:
        time.sleep(0.01)
    with Client.from_url(f"sqlite:{locks.store._database.path}") as others:  # type: ignore[attr-defined]
        assert others.rw_lock("x").reader().acquire(blocking=False) is None
        peer.process.kill()
        killed = boottime()
        late = others.rw_lock("x").reader().acquire(timeout=5)
        assert late is not None
        late.release()
        reader.release()
        others.rw_lock("x").writer().acquire(timeout=5).release()  # type: ignore[union-attr]
        assert boottime() - killed < 1.0


def test_killed_holder_of_permits(locks: Client, peers: Callable[..., Peer]) -> None:
    peer, semaphore = peers(), locks.semaphore("x", 3)
    peer.ask("holds.setdefault('x', locks.semaphore('x', 3, lease=60).acquire(2)).token")
    assert semaphore.available() == 1
    assert semaphore.acquire(2, timeout=0.05) is None
    peer.process.kill()
    killed = boottime()
    with semaphore.permits(3):
        assert boottime() - killed < 1.0
    assert semaphore.available() == 3


def test_a_killed_holder_with_lock_delay_blocks_the_name(locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    peer.ask("take('x', lease=60, lock_delay=1.0)")
    peer.process.kill()
    killed = boottime()
    with locks.lock("x", timeout=5):
        assert 1.0 <= boottime() - killed < 1.0 + 1.0


def test_killed_first_waiter(locks: Client, peers: Callable[..., Peer]) -> None:
    hold = locks.lock("x").acquire()
    assert hold is not None
    first = peers()
    first.tell("take('x', lease=60, fair=True)")
    until(lambda: len(locks.inspect("x").waiters) == 1)  # type: ignore[union-attr]
    first.process.kill()
    got: list[float] = []

    def second() -> None:
        with locks.lock("x", fair=True, timeout=5):
            got.append(boottime())

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.1)
    released = boottime()
    hold.release()
    thread.join()
    assert got[0] - released < 1.0


def test_killed_between_grant_and_notification(locks: Client, peers: Callable[..., Peer]) -> None:
    """The next in line is stopped when it gets the lock, and then killed: those behind it do not wait for its lease."""
    hold = locks.lock("x").acquire()
    assert hold is not None
    first = peers()
    first.tell("take('x', lease=60, fair=True)")
    until(lambda: len(locks.inspect("x").waiters) == 1)  # type: ignore[union-attr]
    first.process.send_signal(signal.SIGSTOP)
    hold.release()
    info = locks.inspect("x")
    assert info is not None
    assert info.holders[0].pid == first.process.pid
    threading.Timer(0.2, first.process.kill).start()
    began = boottime()
    with locks.lock("x", timeout=5):
        assert boottime() - began < 0.2 + 1.0


def test_the_permits_of_a_dead_process_go_to_all_waiters(path: Path, locks: Client, peers: Callable[..., Peer]) -> None:
    """Two of two permits go at once with their process; both waiters enter, not only the one that noticed."""
    mode = LockMode(Kind.SEMAPHORE, permits=1, limit=2)
    peer = peers()
    for _ in range(2):
        terms = "LockMode(Kind.SEMAPHORE, permits=1, limit=2), locks._core._engine.owner, 60.0"
        ticket = f"Ticket(ticket_id(os.urandom(16)), LeaseTerms({terms}))"
        code = f"locks.store.try_acquire('s', {ticket}, join=True, within=5)"
        peer.ask("exec('from leasehold._model import *; from leasehold._model import ticket_id', globals())")
        peer.ask(f"finish({code}).token")
    got: list[float] = []

    def enter() -> None:
        ticket = Ticket(ticket_id(os.urandom(16)), LeaseTerms(mode, Owner("h", 1, "c"), 60.0))
        while True:
            answer = finish(locks.store.try_acquire("s", ticket, join=True, within=5))
            if isinstance(answer, Granted):
                break
            if finish(locks.store.wait("s", ticket, answer.mark, timeout=min(answer.ask_again, 30))) is not None:
                break
        got.append(boottime())

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    peer.process.kill()
    killed = boottime()
    for thread in threads:
        thread.join(10)
    assert len(got) == 2
    assert max(got) - killed < 1.0


def test_stopped_holder(locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    old = peer.ask("take('x', lease=0.5)")
    write = "finish(locks.store.compare_and_set('row', Change(b'old', fence=holds['x'].token))).changed"
    assert peer.ask(write) is True
    peer.process.send_signal(signal.SIGSTOP)
    stopped = boottime()
    with locks.lock("x", timeout=5) as hold:
        assert boottime() - stopped < 0.5 + 0.5
        assert hold.token > old
        assert finish(locks.store.compare_and_set("row", Change(b"new", fence=hold.token))).changed
        peer.process.send_signal(signal.SIGCONT)
        assert peer.ask("tell(holds['x'].raise_if_lost)") == "LeaseLost"
        assert peer.ask(write) is False
        assert peer.ask("tell(holds['x'].release)") == "LeaseLost"
        hold.raise_if_lost()
        assert finish(locks.store.compare_and_set("row", Change())).value == b"new"
        info = locks.inspect("x")
        assert info is not None
        assert [one.token for one in info.holders] == [hold.token]

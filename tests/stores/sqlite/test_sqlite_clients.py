"""Many waiters, both flavors, cancellation, repeated requests, a busy file, and the end of a client, on SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_peers import Peer, boottime, raw

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold._model import (
    Granted,
    LeaseTerms,
    LockMode,
    Owner,
    ReleaseReason,
    RenewalResult,
    Severity,
    Ticket,
    ticket_id,
)
from leasehold._runtimes.base import finish
from leasehold.stores.sqlite import waiting
from support.patience import until


def test_two_hundred_waiters(path: Path, locks: Client) -> None:
    tokens: list[int] = []

    def thread() -> None:
        with locks.lock("x", lease=20) as hold:
            tokens.append(hold.token)

    async def tasks() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as others:

            async def task() -> None:
                async with others.lock("x", lease=20, fair=True) as hold:
                    tokens.append(hold.token)

            await asyncio.gather(*(task() for _ in range(120)))

    with locks.lock("x"):
        threads = [threading.Thread(target=thread) for _ in range(80)]
        threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
        for one in threads:
            one.start()
        until(lambda: len(locks.inspect("x").waiters) == 200)  # type: ignore[union-attr]
        began = boottime()
    for one in threads:
        one.join(30)
    assert boottime() - began < 10
    assert len(tokens) == 200
    assert tokens == sorted(set(tokens))
    assert raw(path, "SELECT count(*) FROM entry") == [[0]]


def test_blocking_and_asyncio_clients_share_a_file(path: Path, locks: Client) -> None:
    async def body() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as others:
            with locks.lock("a") as mine:
                assert await others.lock("a").acquire(timeout=0.05) is None
                waiting = asyncio.create_task(others.lock("a").acquire(timeout=5))
                await asyncio.sleep(0.1)
            theirs = await waiting
            assert theirs is not None
            assert theirs.token > mine.token
            assert locks.lock("a").acquire(blocking=False) is None
            await theirs.release()

    with pytest.warns(RuntimeWarning, match="running event loop"):
        asyncio.run(body())


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_cancellation_leaves_nothing(path: Path, held: bool) -> None:
    async def body() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as locks:
            blocker = await locks.lock("x").acquire() if held else None
            for step in range(60):
                task = asyncio.create_task(locks.lock("x").acquire())
                if step % 2:
                    await asyncio.sleep(step * 0.0001)
                else:
                    for _ in range(step // 2):
                        await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    hold = await task
                    assert hold is not None
                    await hold.release()
                info = await locks.inspect("x")
                assert info is None if blocker is None else (info is not None and info.waiters == ())
            assert locks.store._waiters._waiting == {}  # type: ignore[attr-defined]
            if blocker is not None:
                await blocker.release()

    asyncio.run(body())


def test_repeated_claims_and_leaves(locks: Client) -> None:
    store = locks.store
    ticket = Ticket(ticket_id(os.urandom(16)), LeaseTerms(LockMode(), Owner("h", 1, "c"), 5.0))
    first = finish(store.try_acquire("x", ticket, join=True, within=1))
    again = finish(store.try_acquire("x", ticket, join=True, within=1))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.token == first.token
    assert finish(store.renew([("x", ticket), ("y", ticket)], within=1)) == [RenewalResult.HELD, RenewalResult.GONE]
    assert finish(store.release("x", ticket, reason=ReleaseReason.RELEASE, within=1)) is True
    assert finish(store.release("x", ticket, reason=ReleaseReason.RELEASE, within=1)) is False
    assert finish(store.renew([("x", ticket)], within=1)) == [RenewalResult.GONE]


def test_busy_file_is_bounded(path: Path, peers: Callable[..., Peer]) -> None:
    with Client.from_url(f"sqlite:{path}", response_timeout=0.5) as locks:
        with locks.lock("x"):
            pass
        writer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sqlite3, sys\n"
                "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
                "db.execute('BEGIN IMMEDIATE'); print('in', flush=True); sys.stdin.read()",
                str(path),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            began = boottime()
            with pytest.raises(StoreUnavailable, match="busy") as caught:
                locks.lock("x").acquire(timeout=0.1)
            assert not caught.value.unknown
            assert boottime() - began < 2.0
            writer.kill()
        with locks.lock("x", timeout=2):
            pass


def test_diagnose(path: Path, locks: Client) -> None:
    with locks.lock("x"):
        pass
    found = {one.subject: one for one in locks.diagnose()}
    assert found["sqlite file"].found == str(path)
    assert found["sqlite durability"].found == "journal_mode=wal synchronous=full"
    assert found["permissions"].severity is Severity.OK
    assert {"sqlite version", "file system", "boot and clock", "process liveness"} <= found.keys()
    path.chmod(0o666)
    found = {one.subject: one for one in locks.diagnose()}
    assert found["permissions"].severity is Severity.WARNING
    path.chmod(0o640)
    found = {one.subject: one for one in locks.diagnose()}
    assert found["permissions"].severity is Severity.NOTE


def test_close_ends_thread_and_socket(path: Path) -> None:
    locks = Client.from_url(f"sqlite:{path}")
    with locks.lock("x"):
        assert locks.lock("x").acquire(timeout=0.05) is None
        assert any(thread.name == "leasehold-sqlite-hints" for thread in threading.enumerate())
    locks.close()
    assert not any(thread.name == "leasehold-sqlite-hints" for thread in threading.enumerate())
    assert not waiting._receivers
    if sys.platform == "linux":
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one that lists them is closed by now
                assert str(path) not in os.readlink(f"/proc/self/fd/{descriptor}")
    locks.close()


def test_close_goes_on_though_the_thread_has_closed_its_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may see the stop flag before `close` has woken it."""
    locks = Client.from_url(f"sqlite:{path}")
    with locks.lock("x"):
        assert locks.lock("x").acquire(timeout=0.05) is None
        (bell,) = waiting._receivers.values()
        stop, thread, port = bell._stop, bell._thread, int(bell._address.split()[1])
        assert thread is not None

        def stop_at_once() -> None:
            threading.Event.set(stop)
            waiting._send(port, bell._key)
            thread.join(10)

        monkeypatch.setattr(stop, "set", stop_at_once)
    locks.close()
    assert not thread.is_alive()
    assert not waiting._receivers


def test_the_idle_notification_thread_ends_by_itself(
    path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "IDLE_CHECKS", 1)
    for _ in range(2):
        with locks.lock("x"):
            assert locks.lock("x").acquire(timeout=0.05) is None
        until(lambda: not any(one.name == "leasehold-sqlite-hints" for one in threading.enumerate()))

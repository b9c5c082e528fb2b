"""Other processes that write, stop or die while they do: no call waits for longer than asked, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from sqlite_peers import boottime, linux, raw

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.stores.sqlite import busy_wait, volume

WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("in", flush=True)
sys.stdin.read()
"""

MENDER = """
import fcntl, sys, time
shared = open(sys.argv[1] + "-shm", "r+b", buffering=0)
fcntl.lockf(shared, fcntl.LOCK_EX, int(sys.argv[2]), 120)
shared.write(bytes(96))
print("in", flush=True)
time.sleep(float(sys.argv[3]))
"""
"""Who has just found that a writer was killed amid a commit: the index of the log is unreadable until it is mended.

The lock bytes are those of sqlite.org/walformat.html, 2.3.1: 120 the writer's, 122 that of who mends.
"""


READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
db.execute("SELECT * FROM host").fetchall()
print("in", flush=True)
sys.stdin.read()
"""

RESTLESS = """
import sys, time
from pathlib import Path
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.machine import Machine
database = Database(Path(sys.argv[1]), Machine(), allow_network=False)
print("in", flush=True)
while True:
    database.transact(lambda db, fence: time.sleep(0.03), time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
"""
"""Writes all the time, to a disk that takes 30 ms."""


@contextlib.contextmanager
def another(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a process up to its first word, and end it."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in\n"
            yield process
        finally:
            process.kill()


def test_a_short_timeout_does_not_wait_behind_a_long_one(path: Path) -> None:
    with Client.from_url(f"sqlite:{path}", response_timeout=30) as locks:
        with locks.lock("x"):
            pass
        with another(WRITER, path) as writer:
            patient = [threading.Thread(target=lambda: locks.lock("y", timeout=30).acquire().release()) for _ in "123"]  # type: ignore[union-attr]
            for thread in patient:
                thread.start()
            began = boottime()
            with pytest.raises(StoreUnavailable, match="busy"):
                locks.lock("x").acquire(timeout=0.1)
            assert boottime() - began < 3.0
            writer.kill()
            for thread in patient:
                thread.join(20)
                assert not thread.is_alive()


def test_a_renewal_that_still_waits_when_its_client_closes_leaves_no_thread_behind(path: Path) -> None:
    def renewals() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if task.get_name() == "leasehold-renew"}

    async def party() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as locks:
            hold = await locks.lock("x", lease=1.5).acquire()
            assert hold is not None
            with another(WRITER, path):
                while not renewals():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                waits = renewals()
                locks._engine.watchdog.forget(hold._lease)  # as if it were lost: no release follows
                await locks.close()
                assert not renewals(), "it is not needed any more"
                await asyncio.wait(waits)
                until = boottime() + 2.0
                while any(one.name == "leasehold-worker" for one in threading.enumerate()):
                    assert boottime() < until, "a thread is left that never ends"
                    await asyncio.sleep(0.01)

    asyncio.run(party())


def test_a_closing_asyncio_client_leaves_no_thread_and_cancelled_calls_end_soon(path: Path) -> None:
    async def party() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}", response_timeout=30) as locks:
            async with locks.lock("x"):
                pass
            with another(WRITER, path) as writer:
                patient = [asyncio.create_task(locks.lock("y", timeout=30).acquire()) for _ in "123"]
                await asyncio.sleep(0.05)
                began = boottime()
                with pytest.raises(StoreUnavailable, match="busy"):
                    await locks.lock("x").acquire(timeout=0.1)
                patient[2].cancel()
                with pytest.raises(asyncio.CancelledError):
                    await patient[2]
                assert boottime() - began < 5.0
                writer.kill()
                first, _ = await asyncio.wait(patient[:2], timeout=20, return_when=asyncio.FIRST_COMPLETED)
                hold = first.pop().result()
                assert hold is not None
                await hold.release()
                for task in patient[:2]:
                    other = await task
                    if other is not None and other is not hold:
                        await other.release()

    asyncio.run(party())


@linux
def test_a_reader_waits_until_the_index_of_the_log_is_mended(path: Path, locks: Client) -> None:
    with locks.lock("x"), another(MENDER, path, 3, 0.3):
        assert locks.inspect("x") is not None


@linux
@pytest.mark.nightly
def test_a_writer_that_is_stopped_amid_a_commit_is_waited_for(path: Path) -> None:
    """SQLite gives up after ten seconds by itself, with an error of another number."""
    with Client.from_url(f"sqlite:{path}", response_timeout=20) as locks:
        with locks.lock("x"):
            pass
        with another(MENDER, path, 1, 11.0), locks.lock("y", timeout=20):
            pass


@linux
def test_a_busy_writer_yields_to_waiting_processes(path: Path, locks: Client) -> None:
    with locks.lock("x"):
        pass
    with another(RESTLESS, path):
        began = boottime()
        for _ in range(6):
            with locks.lock("x", timeout=30):
                pass
        assert boottime() - began < 4.0


def test_a_checkpoint_is_no_sign_that_others_wait(path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes to the file, so the file's modification time is new after it."""
    pauses: list[float] = []
    with locks.lock("x"):
        locks.store._database._connection.execute("PRAGMA wal_autocheckpoint=1")  # type: ignore[attr-defined]
    monkeypatch.setattr(busy_wait, "LONGEST_PAUSE", 60.0)  # since its last transaction, on a busy machine
    monkeypatch.setattr(busy_wait, "FRESH", 10.0)
    monkeypatch.setattr(busy_wait, "time", SimpleNamespace(sleep=pauses.append))
    os.utime(path.with_name("locks.db-shm"), (1.0, 1.0))
    for _ in range(20):
        with locks.lock("x"):
            pass
    assert not pauses
    volume.mark(path)
    with locks.lock("x"):
        pass
    assert len(pauses) == 2


def test_the_log_is_emptied_when_readers_let_it(path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 << 16
    monkeypatch.setattr("leasehold.stores.sqlite.database.LARGEST_LOG", most)
    log = path.with_name("locks.db-wal")

    def use() -> None:
        with locks.lock("x"):
            pass

    use()
    with another(READER, path) as reader:
        while log.stat().st_size <= most:
            use()
        use()  # the reader blocks no other call
        assert log.stat().st_size > most
        reader.kill()
    use()
    assert log.stat().st_size < most


def test_a_log_that_cannot_be_emptied_undoes_no_commit(
    path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was carried out before: an error "disk full, nothing was changed" would be wrong."""
    monkeypatch.setattr("leasehold.stores.sqlite.database.LARGEST_LOG", 0)
    tries: list[str | None] = []

    def allow(action: int, first: str | None, *_: str | None) -> int:
        if first != "wal_checkpoint":
            return sqlite3.SQLITE_OK
        tries.append(first)
        return sqlite3.SQLITE_DENY

    with locks.lock("x"):
        locks.store._database._connection.set_authorizer(allow)  # type: ignore[attr-defined]
        with locks.lock("y"), locks.lock("z"):
            assert tries


ATOMIC = {"transact", "_roll_back"}
"""Here a traced line is where no signal strikes: at the end of a `with`; and in what undoes."""


class Interrupt(BaseException):
    """What a signal raises wherever the program happens to be."""


@pytest.mark.parametrize("writes", [True, False])
def test_an_interrupt_at_any_line_leaves_neither_a_transaction_nor_a_mutex(path: Path, writes: bool) -> None:
    with Client.from_url(f"sqlite:{path}") as locks:
        with locks.lock("x"):
            pass
        database = locks.store._database  # type: ignore[attr-defined]
        struck, at = True, 0
        while struck:
            at += 1
            struck = _strike(at, lambda: database.transact(lambda db, fence: None, boottime() + 5, writes=writes))
            assert not database._mutex.locked(), at
            assert not database._connection.in_transaction, at
        assert at > 10
        assert raw(path, "PRAGMA integrity_check") == [["ok"]]


def _strike(at: int, call: Any) -> bool:
    """Run a call, interrupted at its so manieth line of the database's own; say whether it had so many."""
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("sqlite/database.py"):
            return None
        if event == "line" and frame.f_code.co_name not in ATOMIC:
            left -= 1
            if left == 0:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False

"""Locks in thread pools and process pools: the programs of the page, and what it says of kills and forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import AsyncClient, Client, Hold, LeaseLost, StoreUnavailable
from leasehold_lab.servers import RedisServer
from support.patience import until

PAGE = Path(__file__).parents[3] / "docs" / "integrations" / "pools.md"
METHODS = ["fork", "spawn", "forkserver"]
PROGRAMS = re.findall(r"<!-- not run: it is a program.*?-->\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # Python 3.12 on a fork

url = ""
"""Of the store, in the processes of a pool."""


def connect(given: str) -> None:
    global url
    url = given


def token_of(name: str) -> int:
    with Client.from_url(url, response_timeout=0.5) as locks, locks.lock(name, timeout=20) as hold:
        return hold.token


def hold_and_wait(name: str, note: str) -> None:
    with Client.from_url(url) as locks, locks.lock(name, lease=1):
        Path(note).write_text(str(os.getpid()))
        threading.Event().wait(60)


def take_and_die(lock: Any) -> None:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def pool(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[ProcessPoolExecutor]:
    method: Any = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(2, mp_context=method, initializer=connect, initargs=(redis_server.url,)) as made:
        yield made


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("method", METHODS)
def test_a_program_of_the_page(method: str, number: int, redis_server: RedisServer, tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number].replace("redis://localhost:6379", redis_server.url))
    path = str(Path(leasehold.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(program), method],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("pool", METHODS, indirect=True)
def test_a_client_is_made_in_each_process(pool: ProcessPoolExecutor, namespace: str) -> None:
    tokens = list(pool.map(token_of, [f"{namespace}:a"] * 4))
    assert len(set(tokens)) == 4


@pytest.mark.parametrize("pool", ["fork", "spawn"], indirect=True)
def test_a_killed_process_blocks_for_its_lease(
    pool: ProcessPoolExecutor, redis_server: RedisServer, namespace: str, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    name = f"{namespace}:killed"
    future = pool.submit(hold_and_wait, name, str(note))
    until(lambda: note.exists() and note.read_text(), within=20)
    os.kill(int(note.read_text()), signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        future.result(20)
    with Client.from_url(redis_server.url) as locks, locks.lock(name, timeout=20) as hold:
        assert hold.token


def test_a_multiprocessing_lock_stays_locked_when_its_holder_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    holder = context.Process(target=take_and_die, args=(lock,))
    holder.start()
    holder.join(20)
    assert holder.exitcode == -signal.SIGKILL
    assert not lock.acquire(timeout=0.2)


def test_what_can_be_sent_to_a_process() -> None:
    with Client.from_url("memory:") as locks, locks.lock("a") as hold:
        for each in (locks, locks.lock("b"), hold):
            with pytest.raises(TypeError):
                pickle.dumps(each)
        error = StoreUnavailable("down", name="a")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_hold_goes_with_a_task_and_is_released_though_the_task_was_cancelled() -> None:
    with Client.from_url("memory:") as locks, ThreadPoolExecutor(1) as threads:
        go = threading.Event()
        threads.submit(go.wait, 20)  # the only thread is busy
        hold = locks.lock("report", lease=0.2).acquire()
        assert isinstance(hold, Hold)
        future = threads.submit(hold.raise_if_lost)
        future.add_done_callback(lambda _: hold.release())
        until(lambda: hold.remaining < 0.15)
        until(lambda: hold.remaining > 0.15)  # renewed while the task waits in the queue
        assert future.cancel()
        assert locks.inspect("report") is None
        go.set()


def test_the_store_of_a_process_is_down() -> None:
    with RedisServer() as server:
        method: Any = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=method, initializer=connect, initargs=(server.url,)) as pool:
            assert pool.submit(token_of, "a").result(20)
            server.kill()
            with pytest.raises(StoreUnavailable):
                pool.submit(token_of, "a").result(20)


def test_a_thread_works_on_when_the_block_of_an_async_lock_is_cancelled() -> None:
    worked, go = threading.Event(), threading.Event()

    def work(token: int) -> None:
        assert token
        go.wait(20)
        worked.set()

    async def main() -> None:
        async with AsyncClient.from_url("memory:") as locks:
            with pytest.raises(LeaseLost):
                async with locks.lock("a", lease=0.2, renew=False) as hold:
                    await asyncio.to_thread(work, hold.token)
            assert not worked.is_set()
            go.set()

    asyncio.run(main())
    assert worked.is_set()

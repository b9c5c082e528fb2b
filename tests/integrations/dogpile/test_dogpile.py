"""A value of dogpile.cache is computed once by several processes, whatever becomes of them and of the lock's store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from dogpile.cache import CacheRegion, make_region
from dogpile.cache.api import NO_VALUE

from leasehold import AcquireTimeout, AsyncClient, Client, StoreUnavailable
from leasehold.integrations.dogpile import LockProxy
from leasehold_lab.servers import RedisServer
from support.workers import Journal, working

PROGRAM = """
import os, time
from dogpile.cache import make_region
from leasehold import Client
from leasehold.integrations.dogpile import LockProxy
from support.workers import Journal, note
from pathlib import Path

locks = Client.from_url(os.environ["LOCKS"])
region = make_region().configure("dogpile.cache.redis", arguments={"url": os.environ["CACHE"]}, wrap=[
    LockProxy(locks, lease=1)
])

def compute():
    note("compute")
    first = len(Journal(Path(os.environ["JOURNAL"])).entries("compute")) == 1
    time.sleep(60 if first and os.environ["HANGS"] else 0.5)
    return os.getpid()

note("got", value=region.get_or_create("report", compute))
"""


@pytest.mark.parametrize("killed", [False, True], ids=["", "the first one is killed"])
def test_processes_compute_a_value_once(killed: bool, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with RedisServer() as server, ExitStack() as stack:
        cache = server.url.replace("/0", "/1")
        given = {"LOCKS": server.url, "CACHE": cache, "JOURNAL": str(journal.path), "HANGS": "1" if killed else ""}
        workers = [
            stack.enter_context(working("-c", PROGRAM, folder=tmp_path, name=str(number), **given))
            for number in range(4)
        ]
        if killed:
            (first,) = journal.until(1, "compute")
            next(each for each in workers if each.process.pid == first["pid"]).kill()
        journal.until(3 if killed else 4, "got")
        computed = journal.entries("compute")
        assert len(computed) == (2 if killed else 1)
        assert {each["value"] for each in journal.entries("got")} == {computed[-1]["pid"]}


def region(locks: Client, **options: Any) -> CacheRegion:
    return make_region().configure("dogpile.cache.memory", wrap=[LockProxy(locks, **options)])


def test_threads_of_a_process_compute_once_and_see_that_it_is_locked() -> None:
    with Client.from_url("memory:") as locks:
        cache = region(locks)
        go, began, counted = threading.Event(), threading.Event(), list[int]()

        def compute() -> int:
            counted.append(1)
            began.set()
            assert go.wait(20)
            return 7

        results = list[Any]()
        threads = [threading.Thread(target=lambda: results.append(cache.get_or_create("k", compute))) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert began.wait(20)
        assert cache.key_is_locked("k")
        go.set()
        for thread in threads:
            thread.join(20)
        assert results == [7] * 4
        assert counted == [1]
        assert not cache.key_is_locked("k")


def test_an_old_value_is_returned_while_another_computes() -> None:
    with Client.from_url("memory:") as locks:
        cache = region(locks)
        cache.set("k", "old")
        with locks.lock("dogpile/k"):
            assert cache.get_or_create("k", lambda: "new", expiration_time=0) == "old"
        assert cache.get_or_create("k", lambda: "new", expiration_time=0) == "new"


def test_another_thread_may_finish_the_computation() -> None:
    threads = list[threading.Thread]()

    def in_background(cache: CacheRegion, key: str, creator: Any, mutex: Any) -> None:
        def compute() -> None:
            try:
                cache.set(key, creator())
            finally:
                mutex.release()

        threads.append(threading.Thread(target=compute))
        threads[-1].start()

    with Client.from_url("memory:") as locks:
        cache = make_region(async_creation_runner=in_background)
        cache.configure("dogpile.cache.memory", wrap=[LockProxy(locks)])
        cache.set("k", "old")
        assert cache.get_or_create("k", lambda: "new", expiration_time=0) == "old"
        threads[0].join(20)
        assert cache.get("k") == "new"
        assert locks.inspect("dogpile/k") is None


def test_a_lost_lease_is_no_error_and_hides_none() -> None:
    with Client.from_url("memory:") as locks:
        cache = region(locks)

        def compute() -> float:
            info = locks.inspect("dogpile/k")
            assert info is not None
            assert locks.force_release("dogpile/k", info.holders[0].token or 0)
            return 1 / divisor

        divisor = 0
        with pytest.raises(ZeroDivisionError):
            cache.get_or_create("k", compute)
        divisor = 1
        assert cache.get_or_create("k", compute) == 1
        assert cache.get("k") == 1


def test_threads_compute_once_for_a_key_that_no_lock_can_be_called() -> None:
    with Client.from_url("memory:") as locks:
        cache, counted, began = region(locks), list[str](), threading.Event()
        keys = ["k" * 600, "k" * 601, "\ud800"]

        def compute(key: str) -> str:
            counted.append(key)
            assert cache.key_is_locked(key)
            began.wait(0.05)
            return key

        def ask() -> None:
            assert [cache.get_or_create(key, compute, creator_args=((key,), {})) for key in keys] == keys

        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(ask) for _ in range(2)]:
                done.result(20)
        assert sorted(counted) == sorted(keys)


def test_a_runner_whose_lease_was_lost_does_not_release_the_lock_of_the_next() -> None:
    def released_elsewhere() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(mutex.release).result(20)

    with Client.from_url("memory:") as locks:
        mutex = LockProxy(locks).get_mutex("k")
        assert mutex.acquire()
        info = locks.inspect("dogpile/k")
        assert info is not None
        assert locks.force_release("dogpile/k", info.holders[0].token or 0)
        assert mutex.acquire()
        released_elsewhere()  # by the first runner
        assert mutex.locked()
        released_elsewhere()  # by the second one
        assert not mutex.locked()


def test_a_thread_releases_its_own_hold_though_a_runner_still_has_a_lost_one() -> None:
    with Client.from_url("memory:") as locks:
        mutex = LockProxy(locks).get_mutex("k")
        assert mutex.acquire()
        info = locks.inspect("dogpile/k")
        assert info is not None
        assert locks.force_release("dogpile/k", info.holders[0].token or 0)
        assert mutex.acquire()
        mutex.release()
        assert not mutex.locked()


def test_a_timeout_an_error_and_a_store_that_is_down_reach_the_caller() -> None:
    with RedisServer() as server, Client.from_url(server.url, response_timeout=0.5) as locks:
        cache = region(locks, timeout=0.1)
        with locks.lock("dogpile/k"), pytest.raises(AcquireTimeout, match="still computing"):
            cache.get_or_create("k", lambda: 7)
        with pytest.raises(ZeroDivisionError):
            cache.get_or_create("k", lambda: 1 // 0)
        assert locks.inspect("dogpile/k") is None
        server.kill()
        with pytest.raises(StoreUnavailable):
            cache.get_or_create("k", lambda: 7)
        assert cache.get("k") is NO_VALUE


def test_what_cannot_work_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="dogpile is blocking"):
        LockProxy(AsyncClient.from_url("memory:"))  # type: ignore[arg-type]
    with Client.from_url("memory:") as locks, pytest.raises(ValueError, match="lease"):
        LockProxy(locks, lease=0)

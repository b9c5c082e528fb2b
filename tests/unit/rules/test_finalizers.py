"""A finalizer runs wherever the collector does: also in the client's own threads, which hold mutexes of the store."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from leasehold import Client, Lock, StoreUnavailable
from leasehold._runtimes.base import finish, interrupts, run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.memory import Memory
from leasehold.stores.sqlite.machine import Machine
from leasehold.stores.sqlite.waiting import Waiters

SOON = 10.0

Finalize = Callable[[], None]


async def call() -> bool:
    """Be a public call, as a finalizer makes it."""
    return interrupts()


def in_a_job(finalize: Finalize, ended: threading.Event) -> None:
    async def work() -> None:
        finalize()

    BlockingRuntime().spawn(work, "job")


def in_a_piece(finalize: Finalize, ended: threading.Event) -> None:
    async def work() -> None:
        if threading.current_thread() is not threading.main_thread():
            finalize()

    finish(BlockingRuntime().gather(work(), work()))


def in_the_thread_of_sqlite(finalize: Finalize, ended: threading.Event) -> None:
    def check(_: Mapping[str, str]) -> Sequence[str]:
        finalize()
        return ()

    waiters = Waiters(BlockingRuntime(), Machine(), check)
    waiters.expect("a", "ticket")
    ended.wait(SOON)
    waiters.close()


def in_a_thread_of_kazoo(finalize: Finalize, ended: threading.Event) -> None:
    kazoo_client = pytest.importorskip("leasehold.stores.zookeeper.connection.kazoo_client")
    kazoo_client.Threads().spawn(finalize)


@pytest.mark.parametrize("where", [in_a_job, in_a_piece, in_the_thread_of_sqlite, in_a_thread_of_kazoo])
def test_a_call_of_a_finalizer_in_a_thread_of_the_client_is_known_to_interrupt_it(
    where: Callable[[Finalize, threading.Event], None],
) -> None:
    found, ended = list[bool](), threading.Event()

    def finalize() -> None:
        found.append(run_sync(call()))
        ended.set()

    where(finalize, ended)
    assert ended.wait(SOON)
    assert found[0]


def test_a_call_in_a_thread_of_the_program_interrupts_nothing() -> None:
    found = list[bool]()
    thread = threading.Thread(target=lambda: found.append(run_sync(call())))
    thread.start()
    thread.join()
    assert found == [False]


class Collecting:
    """Opens a memory store whose renewals drop garbage and collect it, while they hold the mutex of the store."""

    def __init__(self, drop: Callable[[], None]) -> None:
        self.drop = drop
        self.stuck = False

    def open(self, runtime: Any, namespace: str) -> Any:
        return CollectingStore(self, Memory("collecting").open(runtime, namespace), runtime.mutex())


class CollectingStore:
    def __init__(self, opener: Collecting, inner: Any, mutex: Any) -> None:
        self._opener, self._inner, self._mutex = opener, inner, mutex

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def renew(self, *args: Any, **options: Any) -> Any:
        with self._mutex:
            self._opener.drop()
            gc.collect()
        return await self._inner.renew(*args, **options)

    async def release(self, *args: Any, **options: Any) -> Any:
        if not self._mutex.acquire(timeout=SOON / 5):  # a store would wait for ever
            self._opener.stuck = True
            raise StoreUnavailable("the mutex is held")
        self._mutex.release()
        return await self._inner.release(*args, **options)


def test_a_block_that_is_collected_in_a_renewal_waits_for_no_mutex_of_its_store() -> None:
    """The watchdog's thread would wait for itself: no lease of this client would be renewed or released any more."""
    dropped = list[object]()

    def use(lock: Lock) -> Iterator[None]:
        with lock:
            yield

    opener = Collecting(dropped.clear)
    with Client(opener) as client, Client(Memory("collecting")) as looker:
        kept = client.lock("kept", lease=3.0).acquire()
        assert kept is not None
        garbage: list[object] = [use(client.lock("dropped", lease=60.0))]
        next(garbage[0])  # type: ignore[call-overload]
        garbage.append(garbage)
        dropped.append(garbage)
        del garbage
        until = time.monotonic() + SOON
        while looker.inspect("dropped") is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert not opener.stuck
        assert looker.inspect("dropped") is None, "the watchdog has sent the release"
        kept.raise_if_lost()


class WithALock(logging.Handler):
    """Takes a lock for each record, as a handler that shares a file with other processes."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        self.done = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        with self.client.lock("log file"):
            self.done.set()


def test_a_log_handler_may_use_a_lock_for_what_the_watchdog_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client.from_url("memory:") as client, Client.from_url("memory:") as other:
        handler = WithALock(other)
        monkeypatch.setattr(logging.getLogger("leasehold"), "handlers", [handler])
        client.lock("x", lease=0.2, renew=False).acquire()  # it expires, and the watchdog notices
        assert handler.done.wait(SOON)

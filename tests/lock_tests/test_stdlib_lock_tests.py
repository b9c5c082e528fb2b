"""CPython's own tests of `threading`'s locks and semaphores, from the running interpreter, against ours.

They are used as they are, on the objects that users have: locks and sides of a read-write lock need no adapter. That
for a semaphore is thin: ours gives back what the calling thread acquired, that of `threading` anything by anyone. What
cannot hold for a lock that lives elsewhere is left out by name, with the reason; where that reason is a promise of
ours, a test of ours says the opposite.
"""

from __future__ import annotations

import itertools
import threading
import unittest
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold import Barrier, BrokenBarrier, Client, Hold, NotHeld, Semaphore
from leasehold.primitives.locks.lock import Mutex
from leasehold.stores.memory import MemoryStore
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.sqlite.store import SQLiteStore
from leasehold_lab.servers import RedisServer

lock_tests = pytest.importorskip("test.lock_tests", reason="this Python has no package `test`: install it to run them")
support = pytest.importorskip("test.support")

OF_ALL = {
    "test_repr": "only the store knows whether a lock is held; repr sends no request",
    "test_locked_repr": "only the store knows whether a lock is held; repr sends no request",
    "test_timeout": "any number of seconds is a timeout, so nothing overflows: test_timeout_of_any_length",
}

OF_LOCK = {
    "test_different_thread": "a thread cannot release what another holds: test_another_thread_cannot_release",
    "test_reacquire": "the same: it releases what another thread holds",
    "test_at_fork_reinit": "a private hook of threading; see the tests of forks",
}

OF_RLOCK = {
    "test_release_save_unacquired": "a private hook of threading.Condition, which cannot wait on a lease",
    "test_recursion_count": "a private hook of threading.Condition, which cannot wait on a lease",
    "test__is_owned": "a private hook of threading.Condition, which cannot wait on a lease",
}

OF_SEMAPHORE = {
    "test_repr": "only the store knows how many permits are there; repr sends no request",
    "test_release_unacquired": "permits come from acquires alone: release_ends_the_last_hold_of_the_caller, in the kit",
}

OF_BARRIER = {
    "test_repr": "only the store knows who waits; repr sends no request",
}

MAKERS: dict[str, Callable[[Client, str], Mutex]] = {
    "lock": lambda client, name: client.lock(name),
    "rlock": lambda client, name: client.rlock(name),
    "writer": lambda client, name: client.rw_lock(name).writer(),
    "permit": lambda client, name: client.semaphore(name, 1).permits(1),
}

names = itertools.count(1)


class AsInThreading:
    """A semaphore of ours with the methods of `threading.BoundedSemaphore`: anyone may release what one acquired."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._holds: list[Hold] = []

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        hold = self._semaphore.acquire(1, blocking, timeout)
        if hold is not None:
            self._holds.append(hold)
        return hold is not None

    def release(self, n: int = 1) -> None:
        if len(self._holds) < n:
            raise ValueError("released too often")
        for _ in range(n):
            self._holds.pop().release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class AsBarrier:
    """A barrier of ours with properties and error of `threading.Barrier`; its action runs between two meetings."""

    def __init__(self, barrier: Barrier, action: Callable[[], object] | None) -> None:
        self._barrier = barrier
        self._action = action
        self.parties = barrier.parties

    def wait(self, timeout: float | None = None) -> int:
        try:
            place = self._barrier.wait(timeout)
            if self._action is not None:
                if place == 0:
                    self._action()
                self._barrier.wait(timeout)
        except BrokenBarrier as error:
            raise threading.BrokenBarrierError from error
        return place

    def abort(self) -> None:
        self._barrier.abort()

    def reset(self) -> None:
        self._barrier.reset()

    @property
    def broken(self) -> bool:
        return self._barrier.broken()

    @property
    def n_waiting(self) -> int:
        return self._barrier.n_waiting()


class OnAStore(unittest.TestCase):
    """Makes locks of a client, and ends what it started before the standard library counts threads."""

    store = ""
    method = ""
    url: str
    client: Client

    @pytest.fixture(autouse=True)
    def _place(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        request.node.user_properties.append((f"store:{self.store}", True))
        if self.store == "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            self.url = server.url
        else:
            self.url = {"memory": "memory:stdlib", "sqlite": f"sqlite:{tmp_path}/locks.db"}[self.store]

    def setUp(self) -> None:
        self.client = Client.from_url(self.url)
        with self.client.lock("first"):  # so that the threads of a client run before a test counts its own
            self.client.lock("first").acquire(timeout=0.01)
        super().setUp()

    def tearDown(self) -> None:
        self.client.close()
        support.environment_altered = False
        super().tearDown()
        assert not support.environment_altered, "a thread outlives the test"

    def locktype(self) -> Mutex:
        return MAKERS[self.method](self.client, f"stdlib-{next(names)}")

    def barriertype(
        self, parties: int, action: Callable[[], object] | None = None, timeout: float | None = None
    ) -> AsBarrier:
        return AsBarrier(self.client.barrier(f"stdlib-{next(names)}", parties, timeout=timeout), action)

    def semtype(self, value: int = 1) -> AsInThreading:
        return AsInThreading(self.client.semaphore(f"stdlib-{next(names)}", value))


class Meets(OnAStore):
    """What makes barriers, which their tests abort at the end."""

    barrier: AsBarrier

    def tearDown(self) -> None:
        self.barrier.abort()
        self.barrier.abort = lambda: None  # type: ignore[method-assign]  # the client is closed by then
        super().tearDown()


class Ours(OnAStore):
    """What we state instead of what is left out."""

    def test_timeout_of_any_length(self) -> None:
        lock = self.locktype()
        with pytest.raises(ValueError, match="blocking=False"):
            lock.acquire(False, 1)
        with pytest.raises(ValueError, match="negative"):
            lock.acquire(timeout=-100)
        for timeout in (1e100, float("inf"), threading.TIMEOUT_MAX + 1, threading.TIMEOUT_MAX, 5, -1, None):
            assert lock.acquire(timeout=timeout)
            lock.release()
        assert lock.acquire()
        assert _elsewhere(lambda: lock.acquire(timeout=0.3)) is None
        lock.release()

    def test_another_thread_cannot_release(self) -> None:
        lock = self.locktype()
        lock.acquire()
        assert isinstance(_elsewhere(lock.release), NotHeld)
        lock.release()


def _elsewhere(call):  # type: ignore[no-untyped-def]
    """Return what ``call`` returns or raises in another thread."""
    came = []

    def run() -> None:
        try:
            came.append(call())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return came[0]


def left_out(of: dict[str, str], tests: type) -> dict[str, None]:
    """Return class attributes that hide tests, which must exist."""
    gone = [name for name in of if not hasattr(tests, name)]
    assert not gone, f"{tests.__name__} has no {gone}: take them off the list of what is left out"
    return dict.fromkeys(of)


PROMISES = {"memory": MemoryStore, "sqlite": SQLiteStore, "redis": RedisStore}

KINDS = (
    ("lock", lock_tests.LockTests, OF_ALL | OF_LOCK, Ours, "fencing"),
    ("rlock", lock_tests.RLockTests, OF_ALL | OF_RLOCK, Ours, "fencing"),
    ("writer", lock_tests.RLockTests, OF_ALL | OF_RLOCK, Ours, "shared"),
    ("permit", lock_tests.LockTests, OF_ALL | OF_LOCK, Ours, "permits"),
    ("semaphore", lock_tests.SemaphoreTests, OF_SEMAPHORE, OnAStore, "permits"),
    ("barrier", lock_tests.BarrierTests, OF_BARRIER, Meets, "permits"),
    ("bounded", lock_tests.BoundedSemaphoreTests, {"test_repr": OF_SEMAPHORE["test_repr"]}, OnAStore, "permits"),
)
"""What is made, the tests, what is left out of them, what makes it, and the capability without which there is none."""

for _store, _promised in PROMISES.items():
    for _method, _tests, _of, _base, _need in KINDS:
        if getattr(_promised.capabilities, _need):
            _name = f"Test{_tests.__name__.removesuffix('Tests')}By{_method.capitalize()}On{_store.capitalize()}"
            _body = {"store": _store, "method": _method, **left_out(_of, _tests)}
            globals()[_name] = type(_name, (_base, _tests), _body)

del Meets, Ours, OnAStore, _tests, _base, KINDS  # else they are collected themselves

"""The blocking runtime: each call blocks the calling thread and never suspends."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from leasehold._runtimes import clock
from leasehold._runtimes.base import (
    INTERRUPTS_MESSAGE,
    Caller,
    Flavor,
    Job,
    RecursiveMutex,
    Runtime,
    Scope,
    Signal,
    calls,
    finish,
    interrupts,
    is_own_error,
    run_sync,
    warn,
)

T = TypeVar("T")


IN_A_LOOP = "a blocking leasehold call inside a running event loop stops every task of that loop; use AsyncClient there"


class BlockingRuntime:
    """Threads, and waits that block them."""

    flavor = Flavor.SYNC

    now = staticmethod(clock.boottime)
    wall_us = staticmethod(clock.wall_us)
    random_bytes = staticmethod(os.urandom)
    jitter = staticmethod(random.random)

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def recursive_mutex(self) -> RecursiveMutex:
        return threading.RLock()  # type: ignore[return-value]

    def signal(self) -> Signal:
        return ThreadSignal()

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))  # noqa: ASYNC251 it blocks: that is what this runtime is for

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        job = ThreadJob(work, name)
        job.thread.start()
        return job

    def spawn_loop(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        return self.spawn(work, name)

    def beside(self) -> Runtime:
        return self

    async def attempt(self, work: Coroutine[Any, Any, T], name: str, otherwise: T) -> T:
        return await work

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T | BaseException]:
        pieces = Pieces(work)
        # The main thread does none of it: what a signal handler raises there would count as the outcome of that work.
        here = 0 if threading.current_thread() is threading.main_thread() else 1
        threads: list[threading.Thread] = []
        try:
            for index in range(here, len(work)):
                threads.append(threading.Thread(target=pieces.run_in_thread, args=(index,), daemon=True))
                try:
                    threads[-1].start()
                except RuntimeError:  # no thread can be started
                    pieces.run(index)
            if here:
                pieces.run(0)
            _join(threads)
        finally:
            await pieces.end()
        return pieces.results

    async def shield(self, work: Coroutine[Any, Any, T], grace: float | None = None) -> T:
        return await work  # nothing cancels a thread

    async def offload(self, call: Callable[[], T]) -> T:
        return call()

    def me(self) -> Caller:
        caller: ThreadCaller | None = getattr(_mine, "caller", None)
        if caller is None:
            caller = _mine.caller = ThreadCaller()
        return caller

    def scope(self) -> Scope | None:
        return None  # a thread cannot be cancelled

    interrupts = staticmethod(interrupts)

    def before_blocking(self) -> None:
        if calls.depth > 1 and interrupts():
            raise RuntimeError(INTERRUPTS_MESSAGE)
        if asyncio._get_running_loop() is not None:
            warn(IN_A_LOOP)

    def before_release(self) -> None:
        if asyncio._get_running_loop() is not None:
            warn(IN_A_LOOP)

    def wake(self) -> None:
        pass  # each thread sleeps by itself

    def close(self) -> None:
        pass


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for the end of the threads; some may not have been started."""
    for thread in threads:
        if thread.is_alive():
            thread.join()


class Pieces(Generic[T]):
    """Pieces of work that threads do at once, and their results."""

    def __init__(self, work: Sequence[Coroutine[Any, Any, T]]) -> None:
        self.results: list[T | BaseException] = [RuntimeError("not run")] * len(work)
        self._left = dict(enumerate(work))  # what has not begun; a thread that takes a piece out does it
        self._under_way = set[int]()  # in threads
        self._ended = ThreadSignal()  # set when one of these ends

    def run(self, index: int, run: Callable[[Coroutine[Any, Any, T]], T] = finish) -> None:
        """Do a piece, unless it has begun or was given up."""
        one = self._left.pop(index, None)
        if one is None:
            return
        try:
            self.results[index] = run(one)
        except BaseException as error:  # passed to the caller
            if not is_own_error(error):
                raise
            self.results[index] = error

    def run_in_thread(self, index: int) -> None:
        """Do a piece in a thread that only does this."""
        self._under_way.add(index)
        try:
            self.run(index, run_sync)
        finally:
            self._under_way.discard(index)
            self._ended.set()

    async def end(self) -> None:
        """Give up what has not begun, also in threads that are just starting, and wait for what is under way.

        It does not use `Thread.join`: before Python 3.13, a `join` that was interrupted takes its thread for ended.
        """
        for index in range(len(self.results)):
            one = self._left.pop(index, None)
            if one is not None:
                one.close()
        while self._under_way:
            self._ended.clear()
            if self._under_way:
                await self._ended.wait(None)


class ThreadSignal:
    """A flag, and a gate that is open while the flag is set.

    It is not a `threading.Event`: the frame that a signal handler interrupted could hold the mutex of the event. The
    gate is a lock: locked while waiters must wait, unlocked while they may pass. Each step on it is atomic.
    """

    __slots__ = ("_flag", "_gate")

    def __init__(self) -> None:
        self._flag = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        self._flag = True
        self._open()

    def clear(self) -> None:
        self._gate.acquire(blocking=False)
        self._flag = False  # after the gate: a set in between leaves the gate open, and the next waiter checks the flag

    def is_set(self) -> bool:
        return self._flag

    async def wait(self, timeout: float | None) -> bool:
        if self._flag:
            return True
        until = None if timeout is None else clock.boottime() + timeout
        while True:
            left = -1.0 if until is None else min(max(0.0, until - clock.boottime()), threading.TIMEOUT_MAX)
            passed = self._gate.acquire(timeout=left)
            if self._flag:
                self._open()  # for other waiters
                return True
            if not passed:
                return False

    def _open(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:  # it is open already
            pass


class ThreadJob:
    """A daemon thread. Its work counts as a call: a finalizer that interrupts it must not wait either."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._ended = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            run_sync(self._work())
        finally:
            self._ended = True

    def alive(self) -> bool:
        return not self._ended  # not `Thread.is_alive`, which takes a lock: each acquire calls this

    def cancel(self) -> None:
        pass

    async def join(self, timeout: float) -> bool:
        if self.thread is threading.current_thread():
            return False
        self.thread.join(timeout)
        return not self.thread.is_alive()


class ThreadCaller:
    """The calling thread."""

    __slots__ = ("_thread", "key")

    def __init__(self) -> None:
        self.key = threading.get_ident()
        self._thread = weakref.ref(threading.current_thread())

    def alive(self) -> bool:
        thread = self._thread()
        return thread is not None and thread.is_alive()


_mine = threading.local()
"""The `ThreadCaller` of each thread, made once: each acquire and release needs it."""

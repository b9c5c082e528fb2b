"""The thread in which the asyncio runtime runs calls that block."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """One daemon thread that runs blocking calls in their order of arrival."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_work, args=(self._calls,), name="leasehold-worker", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._calls.put, _stop)

    def alive(self) -> bool:
        return self._pid == os.getpid() and self._thread.is_alive()

    def close(self) -> None:
        """Let the thread end after the calls that are queued already."""
        self._end()

    async def run(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = call()
            except BaseException as error:
                _deliver(loop, answer, None, error)
            else:
                _deliver(loop, answer, result, None)

        self._calls.put(work)
        return await answer


def _work(calls: queue.SimpleQueue[Callable[[], None]]) -> None:
    while (call := calls.get()) is not _stop:
        call()
        del call  # it refers to the future of the caller, and so to its loop


def _stop() -> None:
    """Mark the end of the queue: the thread ends when its `Worker` is gone."""


def _deliver(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if answer.done():  # the caller was cancelled; the call that undoes it is queued behind it
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop was closed meanwhile
        pass

"""Tasks and jobs of the asyncio runtime, in programs that cancel all tasks but their own.

Many do so to shut down, and go on under their locks for a while. So a job that others depend on is no task (`LoopJob`).
It sends requests in tasks, and repeats one that was cancelled. A task whose caller waits for it, whatever happens, is
not listed among all tasks (`owned`): its caller is.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

from leasehold._runtimes.base import CLEANUP_WITHIN, Signal

T = TypeVar("T")


def owned(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task for a caller that waits until it has ended, even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    asyncio._unregister_task(task)
    return task


class TaskJob:
    """A task, kept alive by this reference."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self._cancelled = False  # a second cancellation would disturb the cleanup of the task

    def alive(self) -> bool:
        return not self._task.done() and not self._task.get_loop().is_closed()

    def cancel(self) -> None:
        if not self._cancelled and self.alive():
            self._cancelled = True
            self._task.cancel()

    async def join(self, timeout: float) -> bool:
        if self._task is asyncio.current_task():
            return False
        if not self.alive():
            return True
        done, _ = await asyncio.wait((self._task,), timeout=timeout)
        if not done:
            self.cancel()
            await asyncio.wait((self._task,), timeout=CLEANUP_WITHIN)
        return bool(done)


class LoopJob:
    """A coroutine that callbacks of the event loop resume.

    If it is pending when its loop is closed, it is dropped without a warning.
    """

    def __init__(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, ended: Signal) -> None:
        self._work = work
        self._loop = loop
        self._ended = ended
        self._context = contextvars.Context()
        self._awaited: asyncio.Future[Any] | None = None
        loop.call_soon(self._resume, context=self._context)

    def alive(self) -> bool:
        if self._loop.is_closed() and not self._ended.is_set():  # nothing resumes it: let it leave its blocks
            self._ended.set()
            self._work.close()
        return not self._ended.is_set()

    def cancel(self) -> None:
        if self.alive() and self._awaited is not None:
            self._awaited.cancel()

    async def join(self, timeout: float) -> bool:
        if not self.alive() or await self._ended.wait(timeout):
            return True
        self.cancel()
        await self._ended.wait(CLEANUP_WITHIN)
        return False

    def _resume(self, _: object = None) -> None:
        if self._ended.is_set():
            return
        try:
            self._awaited = self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._ended.set()
        except BaseException:
            self._ended.set()
            raise  # the event loop reports it
        else:
            if self._awaited is None:  # it only lets others run
                self._loop.call_soon(self._resume, context=self._context)
            else:
                self._awaited.add_done_callback(self._resume, context=self._context)

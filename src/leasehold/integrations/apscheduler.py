# pyright: basic
# (APScheduler 3 has no types, and its executors are subclassed)
"""APScheduler 3: each run of a job in one worker of many, by its scheduled time.

Theory of operation
-------------------
Every worker has its own scheduler with the same jobs. Its executor gives the *scheduled time* of a run to
`leasehold.Client.scheduled` as the tick. The first worker with a tick runs it, whatever the clocks show. All others
skip it, as does a late worker with an older tick. So a tick runs at most once.

That needs the same job ids and the same scheduled times in all workers:

* APScheduler makes up an id for a job that has none: a job without ``id=`` is refused.
* Cron and date triggers give the same times everywhere. An interval trigger counts from the start of its process: each
  of its times belongs to a tick of the interval, counted from 1970 (`tick_of`), which is the same in all workers.
* ``jitter`` moves each worker's times on its own: refused.

While a run may still start (the job's ``misfire_grace_time``), a store that does not answer is asked again.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from apscheduler.executors import asyncio as on_loop
from apscheduler.executors import pool
from apscheduler.triggers.combining import BaseCombiningTrigger
from apscheduler.triggers.interval import IntervalTrigger

from leasehold import AsyncClient, Client, StoreUnavailable, tick_of
from leasehold._runtimes.log import Log
from leasehold._validate import Seconds

LOG = Log("leasehold.integrations.apscheduler")

ANONYMOUS = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
"""An id that APScheduler made up: a random UUID."""

AGAIN = 0.5
"""Seconds after which a store that did not answer is asked again."""

ELSEWHERE: Final = object()
"""The result of a run that another worker has taken."""


class ThreadPoolExecutor(pool.ThreadPoolExecutor):  # type: ignore[misc]
    """Runs jobs in threads, each tick in one worker: for `BackgroundScheduler` and `BlockingScheduler`.

    Args:
        client: acquires the locks. One client may serve several executors.
        at_most: seconds after which a run loses its lock, and the next tick may begin in another worker.
        ttl: seconds for which the last tick of a job is remembered: longer than a worker may be late.
        prefix: of the names: the job ``report`` is ``apscheduler/report``.
        max_workers, pool_kwargs: as APScheduler's executor has them.
    """

    def __init__(
        self,
        client: Client,
        *,
        at_most: Seconds,
        ttl: Seconds = 7 * 86_400.0,
        prefix: str = "apscheduler/",
        max_workers: int = 10,
        pool_kwargs: dict[str, Any] | None = None,
    ) -> None:
        _check(client, Client, "AsyncIOExecutor")
        self._scheduled = functools.partial(client.scheduled, at_most=at_most, ttl=ttl)
        self._scheduled(prefix)  # checks the options
        self._prefix = prefix
        self._ending = threading.Event()
        super().__init__(max_workers, pool_kwargs)

    def shutdown(self, wait: bool = True) -> None:
        """End, as APScheduler's does; a run that waits for the store ends with its error."""
        self._ending.set()
        super().shutdown(wait)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        submitted = _SubmittedJob(job)
        scheduled = self._scheduled(self._prefix + job.id)

        def run(*args: Any, **kwargs: Any) -> Any:
            attempt = _Attempt(submitted)

            def work() -> None:
                attempt.begin()
                attempt.result = job.func(*args, **kwargs, **attempt.tick)

            while True:
                try:
                    scheduled.run(work, tick=submitted.tick)
                    return attempt.result
                except StoreUnavailable as error:
                    attempt.raise_if_over(error)
                    if self._ending.wait(AGAIN):
                        raise

        submitted.func = run
        super()._do_submit_job(submitted, submitted.each(run_times))

    def _run_job_success(self, job_id: str, events: Iterable[Any]) -> None:
        super()._run_job_success(job_id, _of_here(events))


class AsyncIOExecutor(on_loop.AsyncIOExecutor):  # type: ignore[misc]
    """Runs jobs on the event loop, each tick in one worker: for `AsyncIOScheduler`. Plain functions run in threads.

    Args:
        client: acquires the locks, on the same event loop.
        at_most: seconds after which a run loses its lock, and the next tick may begin in another worker.
        ttl: seconds for which the last tick of a job is remembered: longer than a worker may be late.
        prefix: of the names: the job ``report`` is ``apscheduler/report``.
    """

    def __init__(
        self, client: AsyncClient, *, at_most: Seconds, ttl: Seconds = 7 * 86_400.0, prefix: str = "apscheduler/"
    ) -> None:
        _check(client, AsyncClient, "ThreadPoolExecutor")
        self._scheduled = functools.partial(client.scheduled, at_most=at_most, ttl=ttl)
        self._scheduled(prefix)  # checks the options
        self._prefix = prefix
        self._closed = asyncio.Event()
        self._closed.set()  # it has not been started
        self._ending: set[asyncio.Future[Any]] = set()
        super().__init__()

    def start(self, scheduler: Any, alias: str) -> None:
        """Begin, or begin again after a shutdown, perhaps on another event loop."""
        super().start(scheduler, alias)
        self._closed = asyncio.Event()

    def shutdown(self, wait: bool = True) -> None:
        """End, as APScheduler's does, which cancels all runs. A function that runs in a thread goes on."""
        self._ending = {run for run in (*self._ending, *self._pending_futures) if not run.done()}
        super().shutdown(wait)
        self._closed.set()

    async def wait_closed(self) -> None:
        """Wait for the scheduler's shutdown, and until all runs have ended and released: then close the client."""
        await self._closed.wait()
        here = asyncio.get_running_loop()
        if ending := [run for run in self._ending if run.get_loop() is here]:
            await asyncio.wait(ending)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        submitted = _SubmittedJob(job)
        scheduled = self._scheduled(self._prefix + job.id)

        async def run(*args: Any, **kwargs: Any) -> Any:
            attempt = _Attempt(submitted)

            async def work() -> None:
                attempt.begin()
                call = functools.partial(job.func, *args, **kwargs, **attempt.tick)
                attempt.result = await (call() if _is_coroutine(job.func) else _in_thread(call))

            while True:
                try:
                    await scheduled.run(work, tick=submitted.tick)
                    return attempt.result
                except StoreUnavailable as error:
                    attempt.raise_if_over(error)
                await asyncio.sleep(AGAIN)

        submitted.func = run
        super()._do_submit_job(submitted, submitted.each(run_times))

    def _run_job_success(self, job_id: str, events: Iterable[Any]) -> None:
        super()._run_job_success(job_id, _of_here(events))


class _SubmittedJob:
    """A job as APScheduler runs it, for one submission: its function is replaced, and knows the scheduled time."""

    def __init__(self, job: Any) -> None:
        _refuse(job)
        self.job = job
        self.func: Callable[..., Any] = job.func
        self.at = datetime.min

    def each(self, run_times: Iterable[datetime]) -> Iterator[datetime]:
        """Pass on the scheduled times; `at` is the one that runs now."""
        for self.at in run_times:
            yield self.at

    @property
    def tick(self) -> datetime:
        """The tick, which identifies the run in all workers."""
        trigger = self.job.trigger
        return tick_of(trigger.interval, self.at) if isinstance(trigger, IntervalTrigger) else self.at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def __str__(self) -> str:
        return str(self.job)


class _Attempt:
    """One run of one tick: whether it began here, what it returned, and how long it may be tried."""

    def __init__(self, submitted: _SubmittedJob) -> None:
        self._job, self._at = submitted.job, submitted.at
        self._began = False
        self.tick = {"tick": submitted.tick} if _takes_tick(self._job) else {}
        self.result: Any = ELSEWHERE

    def begin(self) -> None:
        """Note that the job begins: from now on an error is the job's own."""
        self._began = True
        LOG.debug("%s, scheduled at %s, runs here", self._job.id, self._at)

    def raise_if_over(self, error: StoreUnavailable) -> None:
        """Raise the error if the job began, or may no longer begin."""
        grace = self._job.misfire_grace_time
        late = (datetime.now(UTC) - self._at).total_seconds()
        if self._began or error.lasting or (grace is not None and late + AGAIN > grace):
            raise error
        LOG.warning("%s, scheduled at %s, is tried again: %s", self._job.id, self._at, error)


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Run a function in a thread. A cancellation waits until it has ended, so the lock is held for as long."""
    first = threading.Lock()  # of the thread, or of a cancellation before its begin

    def begin() -> Any:
        return call() if first.acquire(blocking=False) else ELSEWHERE

    # A future and no task, as that of `to_thread`: the end of `asyncio.run` cancels all tasks.
    thread = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, begin)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done() and not first.acquire(blocking=False):
            with suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        raise


def _of_here(events: Iterable[Any]) -> list[Any]:
    """Return the events of the runs of this worker."""
    return [event for event in events if getattr(event, "retval", None) is not ELSEWHERE]


def _takes_tick(job: Any) -> bool:
    """Return whether the job has a parameter for the tick that its arguments leave free."""
    try:
        signature = inspect.signature(job.func)
        given = signature.bind_partial(*job.args, **job.kwargs).arguments
        return "tick" in signature.parameters and "tick" not in given
    except (TypeError, ValueError):  # a builtin, or arguments that do not fit it, which its call will say
        return False


def _is_coroutine(function: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function)))


def _check(client: object, kind: type, other: str) -> None:
    if not isinstance(client, kind):
        raise TypeError(f"this executor needs a leasehold.{kind.__name__}, not {type(client).__name__}; or use {other}")


def _refuse(job: Any) -> None:
    """Raise ValueError for a job whose id or times differ between workers."""
    if ANONYMOUS.fullmatch(job.id):
        raise ValueError(f"the job {job.name!r} has no id that all workers share; add it with id={job.name!r}")
    triggers = [job.trigger]
    for trigger in triggers:
        if getattr(trigger, "jitter", None):
            raise ValueError(f"jitter gives the job {job.id!r} another scheduled time in each worker; leave it out")
        if isinstance(trigger, BaseCombiningTrigger):
            if any(isinstance(inner, IntervalTrigger) for inner in trigger.triggers):
                raise ValueError(
                    f"the job {job.id!r} combines an interval, which each worker counts from its own start; "
                    "write it as a cron trigger"
                )
            triggers += trigger.triggers

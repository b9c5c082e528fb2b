"""arq: jobs run under a lock that their arguments name.

A decorator for the job's coroutine function: arq's hooks around a job cannot keep it from running.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from leasehold import AcquireTimeout, AsyncClient, LeaseLost, StoreUnavailable
from leasehold._validate import Seconds, seconds
from leasehold.integrations._common.queues import OnBusy, run_under_lock

F = TypeVar("F", bound=Callable[..., Any])


def locked_job(
    client: AsyncClient,
    name: str,
    *,
    on_busy: OnBusy = "retry",
    delay: Seconds = 5.0,
    lease: Seconds = 30.0,
    wait: Seconds = 0.0,
    hold: str | None = None,
) -> Callable[[F], F]:
    """Return a decorator for a job, whose first argument is ``ctx``: ``async def ship(ctx, order_id)``.

    A job ends as arq's `Retry` if the lock is busy, the lease is lost, or the store does not answer.

    Args:
        client: acquires the locks, on the worker's event loop.
        name: of the lock, a template over the job's arguments without ``ctx``: ``order:{order_id}``.
        on_busy: "retry": a job whose lock is busy runs again later, ``max_tries`` times; "skip": it ends.
        delay: seconds before that.
        lease: seconds after which the lock of a dead worker is free.
        wait: seconds for which the job waits for the lock before that.
        hold: the keyword-only argument of the job that gets the hold, for its ``token``.
    """
    from arq.worker import Retry  # pyright: ignore  # it pins an old redis-py: the tests install it elsewhere

    defer = seconds(delay, "delay")

    def again() -> Exception:
        return cast(Exception, Retry(defer=defer))  # a new one each time: an exception keeps the frames it has passed

    def busy(error: AcquireTimeout) -> None:
        raise again() from error

    def decorate(function: F) -> F:
        options: Any = {"on_busy": on_busy, "lease": lease, "wait": wait, "hold": hold, "without": ["ctx"]}
        task = run_under_lock(client, name, busy, **options)(function)

        @functools.wraps(function)
        async def job(*args: Any, **kwargs: Any) -> Any:
            try:
                return await task(*args, **kwargs)
            except (LeaseLost, StoreUnavailable) as error:  # arq itself retries no other error
                raise again() from error

        return cast(F, job)

    return decorate

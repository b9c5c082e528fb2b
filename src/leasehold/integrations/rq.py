"""RQ: jobs run under a lock that their arguments name.

A decorator for the job's function: RQ has no middleware, and its callbacks come after the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rq import Retry

from leasehold import AcquireTimeout, Client
from leasehold.integrations._common.queues import OnBusy, run_under_lock

F = TypeVar("F", bound=Callable[..., object])


def locked_job(
    client: Client,
    name: str,
    *,
    on_busy: OnBusy = "retry",
    retries: int = 100,
    delay: int = 5,
    lease: float = 30.0,
    wait: float = 0.0,
    hold: str | None = None,
) -> Callable[[F], F]:
    """Return a decorator for the function of a job.

    Args:
        client: acquires the locks. RQ's worker forks for each job, and the fork has connections of its own.
        name: of the lock, a template over the job's arguments: ``order:{order_id}``.
        on_busy: "retry": a job whose lock is held by another comes again; "skip": it ends.
        retries: how often it comes again; then it fails.
        delay: whole seconds after which it comes again. More than 0 needs a worker with a scheduler.
        lease: seconds after which the lock of a dead worker is free.
        wait: seconds for which a worker waits for the lock before that.
        hold: the keyword-only argument of the function that gets the hold, for its ``token``.
    """
    again = Retry(max=retries, interval=delay)

    def busy(error: AcquireTimeout) -> Retry:
        return again

    return run_under_lock(client, name, busy, on_busy=on_busy, lease=lease, wait=wait, hold=hold)
